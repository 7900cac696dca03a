"""Checks a model's files without loading them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from alignopsd_trl.models import SHIPPED_MODELS

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def check_model_name(name: str) -> None:
    """Raises `ValueError` if a name is no folder, no shipped policy and no possible Hub id."""
    if not name or name in SHIPPED_MODELS or Path(name).expanduser().is_dir():
        return
    if not _HUB_ID.fullmatch(name):
        raise ValueError(
            f"model={name!r} is no folder, no shipped policy ({', '.join(SHIPPED_MODELS)}) and no Hub id "
            "'owner/name'; correct the path, or make a first policy of your task there (alignopsd warm_start)"
        )


WEIGHTS, ADAPTERS = "*.safetensors", "adapter_model*.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def check_weights(folder: Path) -> None:
    """Checks a model's files without loading them: configuration, weights, and that none was cut short.

    Raises:
        ValueError: if a file is missing or damaged; the message names the folder or the file.
    """
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ValueError(f"model={str(folder)!r} holds no config.json; give a model's folder")
    for file in sorted(folder.glob("*.json")):
        _check_json(file)
    index = folder / "model.safetensors.index.json"
    try:
        named = set(json.loads(index.read_text("utf-8"))["weight_map"].values()) if index.is_file() else set()
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index} is damaged (it has no weight_map); copy the model again") from error
    if missing := sorted(name for name in named if not (folder / name).is_file()):
        raise ValueError(f"{index} names {missing[0]}, which is not there; copy the model again")
    wanted = ADAPTERS if (folder / "adapter_config.json").is_file() else WEIGHTS
    if not any(folder.glob(wanted)):
        if pickled := next(folder.glob("*.bin"), None):
            raise ValueError(
                f"model={str(folder)!r} holds its weights as a pickle ({pickled.name}), which can run code and is not "
                "read; save it as safetensors, with model.save_pretrained"
            )
        raise ValueError(f"model={str(folder)!r} holds no weights ({wanted}); copy the model again")
    weight_types(folder)


def _check_json(file: Path) -> None:
    """Raises `ValueError` if a file of configuration or tokenizer holds no JSON object."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); copy the model again") from error
    if not isinstance(found, dict) and file.name in (*OBJECTS, *TOKENIZERS):
        raise ValueError(f"{file} is damaged (it is no JSON object); copy the model again")


OBJECTS = ("config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json")


def weight_types(folder: Path) -> dict[Path, dict[str, str]]:
    """Returns the number formats of each safetensors file by the weights' names, from its header.

    Raises:
        ValueError: if a file was cut short or has no readable header.
    """
    from safetensors import SafetensorError, safe_open

    types = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as content:
                types[file] = {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is cut short or damaged ({error}); copy the model again") from error
    return types


def check_tokenizer(folder: Path) -> None:
    """Raises `ValueError` if a model's folder has no tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ValueError(
            f"model={str(folder)!r} holds no tokenizer ({TOKENIZERS[0]}); save it there with tokenizer.save_pretrained"
        )

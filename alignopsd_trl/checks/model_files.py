"""Checks a model's files without loading them, and its architecture, whose weights may be on the meta device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignopsd_trl.common.files import read_json
from alignopsd_trl.common.models import SHIPPED_MODELS, resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.methods import Method

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


OBJECTS = ("config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json")
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
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is damaged ({error}); copy the model again") from error
        if not isinstance(found, dict) and file.name in (*OBJECTS, *TOKENIZERS):
            raise ValueError(f"{file} is damaged (it is no JSON object); copy the model again")
    wanted = ADAPTERS if (folder / "adapter_config.json").is_file() else WEIGHTS
    if not any(folder.glob(wanted)):
        if pickled := next(folder.glob("*.bin"), None):
            raise ValueError(
                f"model={str(folder)!r} holds its weights as a pickle ({pickled.name}), which can run code and is not "
                "read; save it as safetensors, with model.save_pretrained"
            )
        raise ValueError(f"model={str(folder)!r} holds no weights ({wanted}); copy the model again")
    weight_types(folder)


def weight_types(folder: Path) -> dict[str, str]:
    """Returns the number formats of a folder's weights by their names, from the headers of its safetensors files.

    Raises:
        ValueError: if a file was cut short or has no readable header.
    """
    from safetensors import SafetensorError, safe_open

    types: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as content:
                types |= {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{file} is cut short or damaged ({error}); copy the model again") from error
    return types


def check_architecture(model: PreTrainedModel, args: AlignOPSDConfig, method: Method) -> None:
    """Raises `ValueError` for a model that can't be trained over turn rows, or not under this configuration."""
    from alignopsd_trl.scoring.packing import depends_on_length  # imports torch

    config: Any = model.config.get_text_config()
    if getattr(config, "num_hidden_layers", 1) < 1:
        raise ValueError(f"the model has num_hidden_layers={config.num_hidden_layers}; take one with layers")
    declared = getattr(config, "router_aux_loss_coef", 0.0)
    balanced = declared if args.router_aux_loss_coef is None else args.router_aux_loss_coef
    if hasattr(config, "output_router_logits") and balanced != 0.0:
        raise ValueError(
            "a mixture-of-experts load-balancing loss is a mean per micro-batch, which sub-chunks would change; "
            "set router_aux_loss_coef=0.0"
        )
    if args.merges_rows and (unmerged := depends_on_length(config)):
        raise ValueError(f"merge_rows=True would change what this model computes: {unmerged}; set merge_rows=False")
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier")
    changed = [f"{name}={getattr(config, name)}" for name in names if getattr(config, name, None) not in (None, 1)]
    if changed and method.kept_logits and getattr(method, "needs_matches", False):
        raise ValueError(
            "auxiliary_loss='distribution' mixes views where the head makes logits, which this model changes "
            f"afterwards ({changed[0]}); use rectify=False"
        )
    from torch.nn import Embedding

    words, positions = model.get_input_embeddings(), getattr(config, "max_position_embeddings", None) or 0
    tables = [one.num_embeddings for one in model.modules() if isinstance(one, Embedding) and one is not words]
    learned = any(positions <= number <= positions + 2 for number in tables)
    if why := depends_on_length(config) or ("they are learned" if learned else None):
        given = {**vars(config), **(getattr(config, "rope_parameters", None) or {})}
        if told := beyond_positions(given.get("original_max_position_embeddings") or positions, args):
            raise ValueError(f"{told} ({why}: beyond, there are none or log-probs depend on the batch)")


def beyond_positions(positions: int | None, args: AlignOPSDConfig) -> str:
    """Returns a note if turns may exceed so many positions of a model, else an empty text.

    Raises:
        ValueError: if a response alone may.
    """
    name = max("max_completion_length", "teacher_max_completion_length", key=lambda one: getattr(args, one) or 0)
    response = getattr(args, name)
    if not positions or args.max_prompt_length + response <= positions:
        return ""
    if response >= positions:
        raise ValueError(f"{name}={response} is not less than the model's {positions} positions; lower it")
    return (
        f"the model was made for {positions} positions, and max_prompt_length={args.max_prompt_length} with responses "
        f"of {response} tokens may need more; set max_prompt_length={positions - response} or less"
    )


def positions_of(name: str) -> int | None:
    """Returns the number of positions in a model's ``config.json``; `None` if it states none."""
    content = read_json(Path(resolve_model(name)).expanduser() / "config.json") or {}
    return content.get("text_config", content).get("max_position_embeddings")


def check_tokenizer(folder: Path) -> None:
    """Raises `ValueError` if a model's folder has no tokenizer."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ValueError(
            f"model={str(folder)!r} holds no tokenizer ({TOKENIZERS[0]}); save it there with tokenizer.save_pretrained"
        )

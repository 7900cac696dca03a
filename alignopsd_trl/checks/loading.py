"""Checks a policy's files before its weights are loaded, and loads policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.checks.model_files import (
    check_complete,
    check_model_name,
    check_tokenizer,
    check_weights,
    weight_files,
)
from alignopsd_trl.models import SHIPPED_MODELS, end_ids, load_tokenizer, resolve_model, unreadable
from alignopsd_trl.options import Share, check_values

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_policy(
    name: str,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    own_tokenizer: bool = True,
    trust_remote_code: bool = False,
    saves: bool = True,
) -> PreTrainedTokenizerBase | None:
    """Checks the files of a policy's folder; skips policies that come with the package.

    Args:
        name: name or path of the policy, as the user wrote it.
        kwargs: options of the chat template.
        own_tokenizer: whether the folder's tokenizer will be used.
        saves: whether the model will be saved; transformers loads some models that it can't save.

    Returns:
        The tokenizer, if there is one to check.

    Raises:
        ValueError: if the policy can't be loaded, played or saved again; the message names the file.
    """
    check_model_name(name)
    folder = Path(resolve_model(name)).expanduser()
    if not folder.is_dir() or folder in SHIPPED_MODELS.values():
        return None
    check_weights(folder)
    if own_tokenizer:
        check_tokenizer(folder)
    if (folder / "adapter_config.json").is_file():  # the base model is elsewhere
        return None
    model = empty_model(folder, trust_remote_code)
    if saves:
        with unreadable(folder, "generation_config.json"):
            model.generation_config.validate(strict=True)
    return load_tokenizer(str(folder), model, kwargs) if own_tokenizer else None


def empty_model(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """Makes the model of a folder's ``config.json`` without weights, and compares it with the weight files.

    Raises:
        ValueError: if transformers can't make the model; if the weights are not this model's.
    """
    import torch
    import transformers

    with unreadable(folder, "config.json"), torch.device("meta"):
        config: Any = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if not (isinstance(config.architectures, list) and config.architectures):
            raise ValueError("it lists no architectures")
        kind = getattr(transformers, config.architectures[0], None)  # as TRL finds it
        remote: Any = transformers.AutoModelForCausalLM
        # the class itself: transformers' other ways would put it into shards where ZeRO-3 is configured
        model = kind(config) if kind else remote.from_config(config, trust_remote_code=trust_remote_code)
        if not model.can_generate():
            raise ValueError(f"architectures={config.architectures} is no language model that generates")
    with unreadable(folder, "generation_config.json"):
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        end_ids(model, 0)
        check_values({"min_p": model.generation_config.min_p}, {"min_p": Share})
        if model.generation_config.stop_strings:
            raise ValueError("it has stop_strings, which end no response here")
    if getattr(config, "quantization_config", None) is None:  # quantized weights have other shapes
        _check_shapes(folder, model)
        check_complete(folder, model)
    return model


def _check_shapes(folder: Path, model: PreTrainedModel) -> None:
    """Compares the shapes of a folder's weights with those of the model, by name. Skips names that transformers
    changes."""
    from safetensors import safe_open

    wanted = {name: list(weight.shape) for name, weight in model.named_parameters(remove_duplicate=False)}
    for file in weight_files(folder):
        with unreadable(folder, file.name), safe_open(file, framework="pt") as content:
            found = {name: content.get_slice(name).get_shape() for name in wanted.keys() & set(content.keys())}
        for name, shape in sorted(found.items()):
            if shape != wanted[name]:
                raise ValueError(
                    f"{file}: {name} has the shape {shape}, and by config.json it has {wanted[name]}; copy both from "
                    "the same model"
                )


def load_policy(name: str, dtype: str = "auto", device: str = "cpu") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a policy for play alone, and its tokenizer.

    Raises:
        ValueError: if the name is no folder, no shipped policy and not on the Hub; if the model lacks weights, or its
            tokenizer can't be used.
    """
    from transformers import AutoModelForCausalLM

    from alignopsd_trl.runs.health import weights_are_finite

    check_policy(name, saves=False)
    path = resolve_model(name)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except OSError as error:
        if Path(path).is_dir():
            raise
        reason, shipped = str(error).strip().splitlines()[0], ", ".join(SHIPPED_MODELS)
        raise ValueError(
            f"--model {name} is no folder and no shipped policy ({shipped}), and as a Hub id: {reason}"
        ) from error
    check_complete(Path(path), model)
    if not weights_are_finite(model):
        raise ValueError(f"the weights of {path} are not finite; copy the model again, or take an earlier checkpoint")
    return model.to(device).eval(), load_tokenizer(path, model)

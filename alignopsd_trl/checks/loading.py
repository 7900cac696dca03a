"""Checks a policy's files before its weights are loaded, and loads policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.checks.model_files import check_model_name, check_tokenizer, check_weights, weight_types
from alignopsd_trl.models import SHIPPED_MODELS, available, end_ids, load_tokenizer, resolve_model, unreadable
from alignopsd_trl.options import Share, check_values
from alignopsd_trl.patched import patched

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_policy(
    name: str,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    own_tokenizer: bool = True,
    trust_remote_code: bool = False,
    saves: bool = True,
    fits: Callable[[PreTrainedModel], None] = lambda model: None,
) -> PreTrainedTokenizerBase | None:
    """Checks the files of a policy's folder; skips policies that come with the package.

    Args:
        name: name or path of the policy, as the user wrote it.
        kwargs: options of the chat template.
        own_tokenizer: whether the folder's tokenizer will be used.
        saves: whether the model will be saved; transformers loads some models that it can't save.
        fits: gets the model, without weights; raises `ValueError` for one that the run can't train.

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
    fits(model)
    if saves:
        with unreadable(folder, "generation_config.json"):
            model.generation_config.validate(strict=True)
    return load_tokenizer(str(folder), model, kwargs, trust_remote_code) if own_tokenizer else None


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
    if getattr(config, "quantization_config", None) is None:  # quantized weights have other types and shapes
        _compare_weights(folder, model, trust_remote_code)
    return model


def _compare_weights(folder: Path, model: PreTrainedModel, trust_remote_code: bool) -> None:
    """Compares a folder's weights with those of its ``config.json``, by transformers' own loading onto the meta device:
    it renames and merges as the loading of a run does, and reads headers alone."""
    from transformers import AutoModelForCausalLM, modeling_utils
    from transformers.integrations import accelerate

    kind: Any = AutoModelForCausalLM if type(model).__module__.startswith("transformers_modules.") else type(model)
    alone, silent = {"is_deepspeed_zero3_enabled": lambda: False}, patched(modeling_utils.logger, disabled=True)
    whole = patched(modeling_utils, **alone, is_fsdp_enabled=lambda: False), patched(accelerate, **alone)
    options = {"use_safetensors": True, "ignore_mismatched_sizes": True, "trust_remote_code": trust_remote_code}
    with redirect_stderr(StringIO()), silent, whole[0], whole[1], unreadable(folder, "weights"):
        _, found = kind.from_pretrained(folder, device_map="meta", output_loading_info=True, **options)
    own, lists = dict(model.named_parameters()), {one: sorted(found[one]) for one in found}
    modules, prefix = {name for name, _ in model.named_modules() if name}, model.base_model_prefix
    names = {_NUMBER.sub("N", name) for name in own}
    for name, shape, wanted in lists["mismatched_keys"]:
        raise ValueError(
            f"model={str(folder)!r}: {name} has the shape {list(shape)}, and by config.json it has {list(wanted)}; "
            "copy both from the same model"
        )
    if missing := lists["missing_keys"]:
        raise ValueError(
            f"model={str(folder)!r} lacks {len(missing)} of {len(model.state_dict())} weights, the first {missing[0]}; "
            "copy the model again"
        )
    for name in lists["unexpected_keys"]:  # a value head or layers of another prediction change nothing
        inside = name.rpartition(".")[0]
        if _NUMBER.sub("N", name) in names or modules & {inside, inside.rpartition(".")[0]}:
            raise ValueError(
                f"model={str(folder)!r} holds {name}, and the model of its config.json has no such weight; copy both "
                "from the same model"
            )
    for file, types in weight_types(folder).items():
        for name, kind in sorted(types.items()):
            trained = name.endswith("weight") or name in own or f"{prefix}.{name}" in own
            if trained and kind not in ("F64", "F32", "F16", "BF16"):
                raise ValueError(
                    f"{file}: {name} has the type {kind}, which is quantised, and config.json has no "
                    "quantization_config; copy both from the same model, or take one in bfloat16 or float32"
                )


_NUMBER = re.compile(r"\d+")


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
    with available(name):
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    if not weights_are_finite(model):
        raise ValueError(f"the weights of {path} are not finite; copy the model again, or take an earlier checkpoint")
    return model.to(device).eval(), load_tokenizer(path, model)

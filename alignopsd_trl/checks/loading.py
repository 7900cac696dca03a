"""Checks a policy's files before its weights are loaded, and loads policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.checks.model_files import check_model_name, check_tokenizer, check_weights, weight_types
from alignopsd_trl.common.models import SHIPPED_MODELS, available, end_ids, load_tokenizer, resolve_model, unreadable
from alignopsd_trl.common.patched import patched

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_policy(
    name: str,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    own_tokenizer: bool = True,
    trust_remote_code: bool = False,
    saves: bool = True,
    judge: Callable[[PreTrainedModel], None] = lambda model: None,
) -> PreTrainedTokenizerBase | None:
    """Checks the files of a policy's folder, but not of one that comes with the package.

    Args:
        name: name or path of the policy, as the user wrote it.
        kwargs: options of the chat template.
        own_tokenizer: whether the folder's tokenizer will be used.
        saves: whether the model will be saved; transformers loads some models that it can't save.
        judge: gets the model, without weights; raises `ValueError` for one that the run can't train.

    Returns:
        The tokenizer, if there is one to check.

    Raises:
        ValueError: if the policy can't be loaded, played or saved again; the message names the file.
    """
    check_model_name(name)
    folder = Path(resolve_model(name)).expanduser()
    if folder in SHIPPED_MODELS.values():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder) if own_tokenizer else None
    if not folder.is_dir():
        return None
    check_weights(folder)
    if own_tokenizer:
        check_tokenizer(folder)
    if (folder / "adapter_config.json").is_file():  # the base model is elsewhere
        return None
    model = empty_model(folder, trust_remote_code)
    judge(model)
    if saves:
        with unreadable(folder, "generation_config.json"):
            model.generation_config.validate(strict=True)
    return load_tokenizer(str(folder), model, kwargs, trust_remote_code=trust_remote_code) if own_tokenizer else None


def model_of(config: Any, trust_remote_code: bool = False) -> PreTrainedModel:
    """Makes the model of a configuration by the class that TRL finds."""
    import transformers

    remote: Any = transformers.AutoModelForCausalLM
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    # the class itself: transformers' other ways would put it into shards where ZeRO-3 is configured
    return kind(config) if kind else remote.from_config(config, trust_remote_code=trust_remote_code)


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
        model = model_of(config, trust_remote_code)
        if not model.can_generate():
            raise ValueError(f"architectures={config.architectures} is no language model that generates")
    with unreadable(folder, "generation_config.json"):
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        end_ids(model, 0)
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
    numbered = partial(re.compile(r"\d+").sub, "N")
    own, modules = {numbered(name) for name, _ in model.named_parameters()}, {name for name, _ in model.named_modules()}
    missing = sorted(found["missing_keys"])
    problems = [f"has {one[0]} of the shape {[*one[1]]}, and not {[*one[2]]}" for one in found["mismatched_keys"]]
    problems += [f"lacks {len(missing)} of {len(model.state_dict())} weights, the first {one}" for one in missing]
    for name in sorted(found["unexpected_keys"]):  # a value head or layers of another prediction change nothing
        inside = name.rpartition(".")[0]
        if numbered(name) in own or modules & {inside or name, inside.rpartition(".")[0] or name}:
            problems.append(f"holds {name}, and the model of its config.json does not")
    for name, kind in weight_types(folder).items():
        if kind not in ("F64", "F32", "F16", "BF16") and (name.endswith("weight") or numbered(name) in own):
            problems.append(f"has {name} of the type {kind}, quantised, but its config.json has no quantization_config")
    if problems:
        raise ValueError(f"model={str(folder)!r} {problems[0]}; copy the model again, all files from one place")


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

"""Checks a policy's files before its weights are loaded, and loads policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.checks.model_files import check_model_name, check_tokenizer, check_weights, weight_shapes
from alignopsd_trl.models import SHIPPED_MODELS, available, end_ids, load_tokenizer, resolve_model, unreadable
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
    """Checks the files of a policy's folder, but not of one that comes with the package.

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
        _compare_weights(folder, model)
    return model


def _compare_weights(folder: Path, model: PreTrainedModel) -> None:
    """Compares names and shapes of a folder's weights with those of the model. transformers makes up weights that are
    not in the files. It also renames some; files with names unknown to the model pass unchecked."""
    wanted, written = dict(model.named_parameters(remove_duplicate=False)), weight_shapes(folder)
    for file, shapes in written.items():
        for name, shape in sorted(shapes.items()):
            if name in wanted and shape != list(wanted[name].shape):
                raise ValueError(
                    f"{file}: {name} has the shape {shape}, and by config.json it has {list(wanted[name].shape)}; copy "
                    "both from the same model"
                )
    names = {name for shapes in written.values() for name in shapes}
    found = {id(wanted[name]) for name in names & wanted.keys()}  # tied weights are one parameter of several names
    missing = sorted(name for name, weight in wanted.items() if id(weight) not in found)
    if names and missing and names <= wanted.keys() | dict(model.named_buffers()).keys():
        raise ValueError(
            f"model={str(folder)!r} lacks {len(missing)} of {len(wanted)} weights, the first {missing[0]}; "
            "copy the model again"
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
    with available(name):
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    if not weights_are_finite(model):
        raise ValueError(f"the weights of {path} are not finite; copy the model again, or take an earlier checkpoint")
    return model.to(device).eval(), load_tokenizer(path, model)

"""Checks a policy's files and its architecture before its weights are loaded, and loads policies."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, modeling_utils
from transformers.integrations import accelerate

from alignopsd_trl.common.files import read_json
from alignopsd_trl.common.models import (
    ADAPTER,
    SHIPPED_MODELS,
    available,
    base_of,
    check_model_name,
    end_ids,
    load_tokenizer,
    resolve_model,
    unreadable,
    with_adapter,
)
from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.common.patched import patched
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.runs.health import weights_are_finite
from alignopsd_trl.scoring.packing import depends_on_length

OBJECTS = ("config.json", "generation_config.json", ADAPTER, "tokenizer_config.json")
WEIGHTS, ADAPTERS = "*.safetensors", "adapter_model*.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


def check_policy(
    name: str,
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    own_tokenizer: bool = True,
    trust_remote_code: bool = False,
    saves: bool = True,
    judge: Callable[[PreTrainedModel], None] = lambda model: None,
    init: Mapping[str, Any] = MappingProxyType({}),
) -> PreTrainedTokenizerBase | None:
    """Checks the files of a policy's folder, but not of one that comes with the package.

    Returns its tokenizer, if there is one to check. Raises `ValueError` if the policy can't be loaded, played or saved
    again; the message names the file.

    Args:
        name: name or path of the policy, as the user wrote it.
        own_tokenizer: whether the folder's tokenizer will be used.
        saves: whether the model will be saved; transformers loads some models that it can't save.
        judge: gets the model, without weights; raises `ValueError` for one that the run can't train.
        init: what ``from_pretrained`` gets beside the folder (``model_init_kwargs``).
    """
    check_model_name(name)
    folder = Path(resolve_model(name)).expanduser()
    _check_init(folder, init, trust_remote_code)
    if folder in SHIPPED_MODELS.values():
        return AutoTokenizer.from_pretrained(folder) if own_tokenizer else None
    if not folder.is_dir():
        return None
    check_weights(folder)
    if own_tokenizer and not any((folder / one).is_file() for one in TOKENIZERS):
        raise ValueError(
            f"model={str(folder)!r} holds no tokenizer ({TOKENIZERS[0]}); save it there with tokenizer.save_pretrained"
        )
    if own_tokenizer and not (folder / "tokenizer_config.json").is_file():
        raise ValueError(
            f"model={str(folder)!r} holds no tokenizer_config.json, which says how its tokenizer cuts a text; copy the "
            "model again, all files from one place"
        )
    base = base_of(name)
    whole = Path(base or folder)
    if not whole.is_dir():  # the base of an adapter is on the Hub
        return None
    if base:
        check_weights(whole)
    model = empty_model(whole, trust_remote_code)
    judge(model)
    if saves:
        with unreadable(folder, "generation_config.json"):
            model.generation_config.validate(strict=True)
    return load_tokenizer(str(folder), model, kwargs, trust_remote_code=trust_remote_code) if own_tokenizer else None


_ELSEWHERE = ("dtype", "torch_dtype", "revision", "device_map", "max_memory", "quantization_config", "tp_plan")
"""Options of loading that have checks of their own, or need the run's machine."""


def _check_init(folder: Path, init: Mapping[str, Any], trust_remote_code: bool) -> None:
    """Loads a folder onto the meta device, which reads headers alone, with these options, if there are any. Raises
    `ValueError` where transformers refuses them."""
    given = {name: value for name, value in init.items() if name not in _ELSEWHERE}
    if not given or not (folder / "config.json").is_file():
        return
    options = {"trust_remote_code": trust_remote_code, **given, "device_map": "meta"}
    try:
        with redirect_stderr(StringIO()):
            AutoModelForCausalLM.from_pretrained(folder, **options)
    except Exception as error:  # by what a model's own class does with them
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"model_init_kwargs={given}: {reason}; correct it") from error


def put_adapter(empty: PreTrainedModel, config: Any) -> Any:
    """Puts an adapter by PEFT's config on a model without weights. Raises `ValueError` where PEFT refuses it, or would
    leave out what it names."""
    from peft import get_peft_model

    names = {name for one in (empty.named_modules(), empty.named_parameters()) for name, _ in one}
    for field in ("modules_to_save", "target_parameters"):
        for word in getattr(config, field, None) or ():
            if not any(name == word or name.endswith(f".{word}") for name in names):
                raise ValueError(f"lora_{field}: the model has no {word!r}; correct it")
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # of the weights that it has not got
            return get_peft_model(empty, deepcopy(config))
    except (ValueError, TypeError, re.error) as error:
        reason = str(error).rstrip(".")
        raise ValueError(
            f"lora_target_modules={config.target_modules!r}: {reason}; name layers of this model, such as "
            "--lora_target_modules q_proj v_proj"
        ) from error


def model_of(config: Any, trust_remote_code: bool = False) -> PreTrainedModel:
    """Makes the model of a configuration by the class that TRL finds."""
    remote: Any = AutoModelForCausalLM
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    # the class itself: transformers' other ways would put it into shards where ZeRO-3 is configured
    return kind(config) if kind else remote.from_config(config, trust_remote_code=trust_remote_code)


def empty_model(folder: Path, trust_remote_code: bool = False) -> PreTrainedModel:
    """Makes the model of a folder's ``config.json`` without weights, and compares it with the weight files. Raises
    `ValueError` if transformers can't make the model; if the weights are not this model's."""
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


def load_policy(
    name: str, dtype: str = "auto", device: str = "cpu", trains: bool = False, quantization: Any = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a policy for play alone, and its tokenizer. An adapter computes beside its base's weights, as in training;
    if the policy ``trains``, all weights do, and the adapter is merged into them. ``quantization`` is transformers'
    config of weights of few bits, which `check_quantised` allows. Raises `ValueError` if the name is no
    folder, no shipped policy and not on the Hub; if the model lacks weights, or its tokenizer can't be used."""
    check_policy(name, saves=False)
    path, base = resolve_model(name), base_of(name)
    with available(base or name, name if base else None):
        few = {"quantization_config": quantization, "device_map": {"": device}} if quantization else {}
        model: Any = AutoModelForCausalLM.from_pretrained(base or path, dtype=dtype, **few)
    settle_quantised(model)
    if base is not None:
        adapted: Any = with_adapter(model, name)
        model = adapted.merge_and_unload().requires_grad_() if trains else adapted.get_base_model()
    if not weights_are_finite(model):
        raise ValueError(f"the weights of {path} are not finite; copy the model again, or take an earlier checkpoint")
    return model.to(device).eval(), load_tokenizer(path, model)


def check_weights(folder: Path) -> None:
    """Checks a model's files without loading them: configuration, weights, and that none was cut short. Raises
    `ValueError` if a file is missing or damaged; the message names the folder or the file."""
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        raise ValueError(f"model={str(folder)!r} holds no config.json (nor {ADAPTER}); give a model's folder")
    for file in sorted(folder.glob("*.json")):
        try:
            found = json.loads(file.read_text("utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise ValueError(f"{file} is damaged ({error}); copy the model again") from error
        if not isinstance(found, dict) and file.name in (*OBJECTS, *TOKENIZERS):
            raise ValueError(f"{file} is damaged (it is no JSON object); copy the model again")
    wanted = ADAPTERS if (folder / ADAPTER).is_file() else WEIGHTS
    if not any(folder.glob(wanted)):
        if pickled := next((one for one in folder.glob("*.bin") if one.name != "training_args.bin"), None):
            raise ValueError(
                f"model={str(folder)!r} holds its weights as a pickle ({pickled.name}), which can run code and is not "
                "read; save it as safetensors, with model.save_pretrained"
            )
        raise ValueError(f"model={str(folder)!r} holds no weights ({wanted}); copy the model again")
    weight_types(folder)


def weight_types(folder: Path) -> dict[str, str]:
    """Returns the number formats of a folder's weights by their names, from the headers of its safetensors files.
    Raises `ValueError` if a file was cut short or has no readable header."""
    types: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as content:
                types |= {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is cut short or damaged ({error}); copy the model again") from error
    return types


def check_architecture(model: PreTrainedModel, args: AlignOPSDConfig, method: Method) -> None:
    """Raises `ValueError` for a model that can't be trained over turn rows, or not under this configuration."""
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
    words, positions = model.get_input_embeddings(), getattr(config, "max_position_embeddings", None) or 0
    tables = [one.num_embeddings for one in model.modules() if isinstance(one, torch.nn.Embedding) and one is not words]
    learned = any(positions <= number <= positions + 2 for number in tables)
    if why := depends_on_length(config) or ("they are learned" if learned else None):
        given = {**vars(config), **(getattr(config, "rope_parameters", None) or {})}
        if told := beyond_positions(given.get("original_max_position_embeddings") or positions, args):
            raise ValueError(f"{told} ({why}: beyond, there are none or log-probs depend on the batch)")


def beyond_positions(positions: int | None, args: Any) -> str:
    """Returns a note if turns may exceed so many positions of a model, else an empty text. Raises `ValueError` if a
    response alone may."""
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
    content = read_json(Path(base_of(name) or resolve_model(name)).expanduser() / "config.json") or {}
    return content.get("text_config", content).get("max_position_embeddings")


# Quantised weights, of which 4 bits of bitsandbytes under an adapter (QLoRA) are tested


def check_quantised(
    quantization: Any, args: AlignOPSDConfig, adapter: bool, elsewhere: bool = False, processes: int | None = None
) -> None:
    """Raises `ValueError` for quantised weights that no test has trained; names what to set instead. ``quantization``
    is transformers' config of them, ``elsewhere`` looks for no packages, ``processes`` are a planned launch's."""
    found = quantization or as_mapping(args.model_init_kwargs).get("quantization_config")
    if found is None:
        return
    says = found.get if isinstance(found, dict) else lambda name: getattr(found, name, None)
    if not says("load_in_4bit"):
        kind, why = f"quantization_config of {says('quant_method')}", "no test has trained such weights"
        if says("load_in_8bit"):
            kind, why = "load_in_8bit=True", "a row's score would depend on the rows beside it, by their outliers"
        raise ValueError(f"{kind} is not supported: {why}; use load_in_4bit=True, or whole weights")
    problem, processes = None, processes or args.world_size
    if not adapter:
        problem = "no weight is left to train; pass a peft_config (--use_peft)"
    elif args.use_vllm:
        problem = (
            "a push to use_vllm=True would merge the adapter into the 4 bits and take it out again, which moves the "
            "base each time; use use_vllm=False, or --dtype bfloat16 in place of 4 bits"
        )
    elif processes > 1:
        problem = f"shown on one process, not on {processes}; use --dtype bfloat16 in place of 4 bits"
    elif not elsewhere and find_spec("bitsandbytes") is None:
        problem = "bitsandbytes is not installed; pip install 'alignopsd-trl[quantized]'"
    if problem:
        raise ValueError(f"load_in_4bit=True: {problem}")


def settle_quantised(model: Any) -> None:
    """Makes a policy with 4-bit weights compute the same when fresh, evaluated or resumed. TRL's adapter on it is
    bfloat16, which loses small steps, and float32 once it is loaded again: here it is float32. On a CPU bitsandbytes
    would pack weights anew in the first evaluation, which rounds their scales for good and fails for short rows.
    """
    if not getattr(model, "is_loaded_in_4bit", False):
        return
    for parameter in filter(lambda one: one.requires_grad, model.parameters()):
        parameter.data = parameter.data.float()
    for module in filter(lambda one: hasattr(one, "support_avx512bf16_for_cpu"), model.modules()):
        module.support_avx512bf16_for_cpu = False

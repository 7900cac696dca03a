"""How a trainer is made: its models whole, its engine with our options, no noise."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import fsdp2_prepare_model, patch_environment
from transformers import AutoTokenizer, PreTrainedConfig
from transformers.integrations import deepspeed
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer
from trl.trainer.utils import create_model_from_path

from alignopsd_trl.checks.loading import settle_quantised
from alignopsd_trl.common import strategies
from alignopsd_trl.common.models import available, base_of, with_adapter
from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.common.patched import patched
from alignopsd_trl.sampling.loop import tell_left_out
from alignopsd_trl.sampling.trl_adapters import AdapterEngine
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.scoring.trl_trainer import policy_of

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.scoring.trl_trainer import Trainer


@contextlib.contextmanager
def loaded_whole() -> Generator[None]:
    """Makes ``from_pretrained`` load as in a run of one process. Otherwise ``fsdp_cpu_ram_efficient_loading`` fills
    models with zeros off local rank 0, and only the policy's are replaced later; ZeRO-3 makes shards that are never
    gathered."""
    reference = deepspeed._hf_deepspeed_config_weak_ref
    config = reference() if reference is not None else None
    deepspeed.unset_hf_deepspeed_config()
    try:
        with patch_environment(fsdp_cpu_ram_efficient_loading="false"):
            yield
    finally:
        if config is not None:
            deepspeed.set_hf_deepspeed_config(config)


def with_own_adapter(
    model: Any, args: AlignOPSDConfig, tokenizer: Any, quantization: Any, peft_config: Any
) -> tuple[Any, Any]:
    """Returns the model that TRL gets and its tokenizer. A folder of an adapter, as a LoRA run leaves, is loaded on its
    base, as TRL loads a model, and goes on training. Anything else stays as it is.

    Raises:
        ValueError: for a further adapter; if the adapter or its base can't be loaded.
    """
    base = base_of(model) if isinstance(model, str) else None
    if base is None:
        return model, tokenizer
    if peft_config is not None:
        raise ValueError(
            f"peft_config with model={model!r}, an adapter that goes on training with settings of its own: leave "
            "peft_config out, or merge the adapter (peft's merge_and_unload), save the whole model and name that"
        )
    options: dict[str, Any] = {"trust_remote_code": args.trust_remote_code} | as_mapping(args.model_init_kwargs)
    options |= {"device_map": None} if args.world_size > 1 else {}
    options |= {} if quantization is None else {"quantization_config": quantization}
    with available(base, model):
        adapted = with_adapter(create_model_from_path(base, **options), model, trains=True)
    sides = {"truncation_side": "left", "padding_side": "left"}
    return adapted, tokenizer or AutoTokenizer.from_pretrained(model, **sides)


@contextlib.contextmanager
def made_for_turns(args: AlignOPSDConfig, whole: bool, adapted: bool = False) -> Generator[None]:
    """Patches TRL while its part of a trainer is made. FSDP2 shards the reference as accelerate shards the policy:
    layer by layer, from rank 0's weights where other ranks hold zeros. TRL would shard each rank's own copy as one
    unit. TRL's own entropy bonus, a mean per micro-batch, stays off.

    Args:
        whole: whether TRL loads the model, which must be whole on each process. It then gets no ``device_map``; TRL
            omits that for DDP and DeepSpeed, but not for FSDP.
        adapted: whether the model was loaded by `with_own_adapter`, which has read ``model_init_kwargs``.
    """
    if whole and args.world_size > 1:
        args.model_init_kwargs = {**as_mapping(args.model_init_kwargs), "device_map": None}
    adapters = (args.engine_options or {}).get("enable_lora", True)
    engine = AdapterEngine if adapters else grpo_trainer.VLLMGeneration
    ours = patched(grpo_trainer, prepare_fsdp=_shard_frozen, VLLMGeneration=engine)
    read = {"model_init_kwargs": None} if adapted else {}
    with ours, engine_options(args.engine_options), patched(args, entropy_coef=0.0, **read):
        yield


def _shard_frozen(model: torch.nn.Module, accelerator: Accelerator) -> torch.nn.Module:
    strategies.refuse_unproven(accelerator)
    strategies.keep_output_precision(accelerator)
    return fsdp2_prepare_model(accelerator, model.requires_grad_(False)).eval()


def engine_options(chosen: Mapping[str, Any] | None) -> AbstractContextManager[None]:
    """Overrides TRL's options of a colocated vLLM engine while a trainer is made; `None` changes nothing. TRL fixes the
    responses sampled at once to the trajectories of a round, and the tokens of a step to 4,096."""
    if chosen is None or not hasattr(vllm_generation, "LLM"):  # not installed: TRL says so
        return contextlib.nullcontext()
    engine, own = vllm_generation.LLM, chosen
    return patched(vllm_generation, LLM=lambda **options: engine(**{**options, **own}))


def initial_weights(trainer: Trainer) -> TeacherWeights:
    """Returns the trained parameters before training: the reference's own where a whole one is loaded and stays fixed,
    else a copy."""
    model, reference = policy_of(trainer), trainer.ref_model
    if reference is None or trainer.args.sync_ref_model:
        return TeacherWeights(model, accelerator=trainer.accelerator)
    given = trainer.accelerator.unwrap_model(reference).named_parameters()
    return TeacherWeights(model, dict(given), trainer.accelerator)


def settle(trainer: Trainer) -> None:
    """Makes a fresh trainer's models compute the same in sampling, scoring and update, and refuses shards that are not
    tested."""
    args, policy = trainer.args, policy_of(trainer)
    strategies.refuse_unproven(trainer.accelerator)
    strategies.keep_output_precision(trainer.accelerator)
    if args.disable_dropout:
        without_noise(policy, trainer.ref_model)
    settle_quantised(policy)
    if trainer.accelerator.is_main_process:
        tell_left_out(policy, {**vars(args), **as_mapping(args.generation_kwargs)})


def without_noise(*models: Any) -> None:
    """Switches off all dropout and jitter of models. TRL's own switch reaches modules, and neither what attention reads
    from the configuration nor what modules copied from it."""
    modules = [module for model in models if model is not None for module in model.modules()]
    configs = [one.config for one in modules if isinstance(getattr(one, "config", None), PreTrainedConfig)]
    for owner in (*modules, *configs):
        for name, value in [*vars(owner).items()]:
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(owner, name, 0.0)

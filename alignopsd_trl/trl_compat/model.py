"""Loading of a trainer's models, and the limits of the policy's architecture."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import fsdp2_prepare_model, patch_environment
from transformers import PreTrainedConfig
from transformers.integrations import deepspeed
from trl.generation import vllm_generation
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import grpo_trainer

from alignopsd_trl.distributed import strategies
from alignopsd_trl.options import as_mapping
from alignopsd_trl.patched import patched
from alignopsd_trl.scoring.packing import why_plain
from alignopsd_trl.scoring.teacher_weights import TeacherWeights
from alignopsd_trl.trl_compat.adapters import AdapterEngine

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig
    from alignopsd_trl.trl_compat import Trainer


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


@contextlib.contextmanager
def made_for_turns(args: AlignOPSDConfig, whole: bool) -> Generator[None]:
    """Patches TRL while its part of a trainer is made. FSDP2 shards the reference as accelerate shards the policy:
    layer by layer, from rank 0's weights where other ranks hold zeros. TRL would shard each rank's own copy as one
    unit. TRL's own entropy bonus, a mean per micro-batch, stays off.

    Args:
        whole: whether TRL loads the model, which must be whole on each process. It then gets no ``device_map``; TRL
            omits that for DDP and DeepSpeed, but not for FSDP.
    """
    if whole and args.world_size > 1:
        args.model_init_kwargs = {**as_mapping(args.model_init_kwargs), "device_map": None}
    adapters = (args.engine_options or {}).get("enable_lora", True)
    engine = AdapterEngine if adapters else grpo_trainer.VLLMGeneration
    ours = patched(grpo_trainer, prepare_fsdp=_shard_frozen, VLLMGeneration=engine)
    with ours, engine_options(args.engine_options), patched(args, entropy_coef=0.0):
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


def initial_weights(trainer: Trainer, moves: bool) -> TeacherWeights:
    """Returns the trained parameters before training: the reference's own where a whole one is loaded and both stay
    fixed, else a copy.

    Args:
        moves: whether the teacher follows the policy.
    """
    model, reference = policy_of(trainer), trainer.ref_model
    if moves or reference is None or trainer.args.sync_ref_model:
        return TeacherWeights(model, accelerator=trainer.accelerator)
    given = trainer.accelerator.unwrap_model(reference).named_parameters()
    return TeacherWeights(model, dict(given), trainer.accelerator)


def policy_of(trainer: Trainer) -> Any:
    """Returns the model without its wrappers for several processes."""
    return trainer.accelerator.unwrap_model(trainer.model)


def text_config(trainer: Trainer) -> Any:
    return policy_of(trainer).config.get_text_config()


def attention_of(trainer: Trainer) -> str:
    return text_config(trainer)._attn_implementation


def computes_in(trainer: Trainer) -> torch.dtype:
    """Returns the precision of the policy's attention: autocast's, where it is on."""
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = policy_of(trainer).dtype
    return autocast.get(trainer.accelerator.mixed_precision, dtype) if dtype == torch.float32 else dtype


def why_not_shared(trainer: Trainer) -> str | None:
    """Returns the reason why prompts can't be shared in scoring with this model, or ``None`` if they can."""
    if getattr(getattr(policy_of(trainer), "active_peft_config", None), "is_prompt_learning", False):
        return "its adapter puts virtual tokens before the row"
    return why_plain(text_config(trainer), attention_of(trainer))


def without_noise(*models: Any) -> None:
    """Switches off all dropout and jitter of models. TRL's own switch reaches modules, and neither what attention reads
    from the configuration nor what modules copied from it."""
    modules = [module for model in models if model is not None for module in model.modules()]
    configs = [one.config for one in modules if isinstance(getattr(one, "config", None), PreTrainedConfig)]
    for owner in (*modules, *configs):
        for name, value in [*vars(owner).items()]:
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(owner, name, 0.0)


def without_checkpointing(trainer: Trainer) -> AbstractContextManager[None]:
    return disable_gradient_checkpointing(trainer.model, as_mapping(trainer.args.gradient_checkpointing_kwargs) or None)

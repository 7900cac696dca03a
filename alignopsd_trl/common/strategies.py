"""Strategies to spread the policy over processes, and what each needs beyond TRL's support.

Proven by tests: one process, DDP, FSDP2, ZeRO-2 and ZeRO-3, each equal to DDP in loss, gradient and weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.tensor import DTensor, distribute_tensor

from alignopsd_trl.common.patched import patched

if TYPE_CHECKING:
    from accelerate import Accelerator

_PLAIN = {*map(DistributedType, ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_HPU"))}
_PARALLEL = {
    **{"tp_size": "tensor parallelism", "cp_size": "context parallelism", "sp_size": "sequence parallelism"},
    "dp_replicate_size": "hybrid sharding",
}


def refuse_unproven(accelerator: Accelerator) -> None:
    """Refuses strategies without a test that they train like DDP. Raises `ValueError` for these, and for a
    configuration that would not save the trained model."""
    if found := _unproven(accelerator):
        raise ValueError(
            f"{found} is not proven with this trainer and may silently train unlike one process. "
            "Proven are one process, DDP, FSDP2 (fsdp_version: 2), DeepSpeed ZeRO-2 and ZeRO-3; see "
            "recipes/accelerate for configurations"
        )
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        zero = accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        if zero["stage"] == 3 and not zero.get("stage3_gather_16bit_weights_on_model_save"):
            raise ValueError(
                "ZeRO-3 without stage3_gather_16bit_weights_on_model_save would leave shards where the trained model "
                "is expected; set it to true (zero3_save_16bit_model: true in an accelerate configuration)"
            )


def refuse_other_shards(accelerator: Accelerator, setting: str) -> None:
    """Refuses to swap weights where DeepSpeed gathers them from elsewhere than a process's shard in memory: raises
    `ValueError` for offloaded parameters and for secondary shards. ``setting``, with its value, needs the swap."""
    if accelerator.distributed_type != DistributedType.DEEPSPEED:
        return
    zero = accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
    offloaded = (zero.get("offload_param") or {}).get("device")
    found = [f"{name}={zero[name]}" for name in ("zero_hpz_partition_size", "mics_shard_size") if zero.get(name, 0) > 1]
    found += [f"offload_param to {offloaded}"] if offloaded not in (None, "none") else []
    if found:
        raise ValueError(
            f"{setting} with DeepSpeed's {found[0]}: other weights can't take the place of such shards; leave that out "
            "of DeepSpeed's configuration, or use teacher_model_kind='live'"
        )


def _unproven(accelerator: Accelerator) -> str | None:
    kind = accelerator.distributed_type
    state: Any = accelerator.state
    for size, name in _PARALLEL.items():
        count = getattr(accelerator.parallelism_config, size, 1) or 1
        if count > 1 and not (size == "dp_replicate_size" and kind in _PLAIN):
            return f"{name} of the trainer ({size}={count})"
    if kind == DistributedType.FSDP:
        version = state.fsdp_plugin.fsdp_version
        return None if version == 2 else f"FSDP{version} (fsdp_version: {version})"
    if kind == DistributedType.DEEPSPEED:
        config = state.deepspeed_plugin.deepspeed_config
        named = [part for part in ("pipeline", "tensor_parallel") if config.get(part)]
        stage = state.deepspeed_plugin.zero_stage
        return f"DeepSpeed with {named[0]!r}" if named else None if stage in (2, 3) else f"DeepSpeed ZeRO-{stage}"
    return None if kind in _PLAIN else f"distributed_type {kind.value}"


def keep_output_precision(accelerator: Accelerator) -> None:
    """Keeps FSDP2 from casting outputs: accelerate's default policy would round float32 log-probs to bfloat16."""
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and getattr(policy, "output_dtype", None) is not None:
        plugin.mixed_precision_policy = dataclasses.replace(policy, output_dtype=None)


def whole_state_dict(accelerator: Accelerator) -> contextlib.AbstractContextManager[None]:
    """Saves whole models while the context is open. Under SHARDED_STATE_DICT transformers would write none at all."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None:
        return contextlib.nullcontext()
    return patched(plugin, state_dict_type=StateDictType.FULL_STATE_DICT)


@contextlib.contextmanager
def unsynchronised(accelerator: Accelerator, model: Any) -> Generator[None]:
    """Turns off gradient exchange and DeepSpeed's optimiser step, for all but the last backward pass of a micro-batch.
    FSDP2 exchanges gradients in each pass all the same, since every GPU would else keep the whole gradient."""
    before, accelerator.sync_gradients = accelerator.sync_gradients, False
    sharded = accelerator.distributed_type == DistributedType.FSDP
    try:
        with contextlib.nullcontext() if sharded else accelerator.no_sync(model):
            yield
    finally:
        accelerator.sync_gradients = before


def keep_gradients_sharded(accelerator: Accelerator, model: Any) -> None:
    """Undoes transformers' ``no_sync`` of gradient accumulation under FSDP2, for the reason in `unsynchronised`."""
    if accelerator.distributed_type == DistributedType.FSDP:
        model.set_requires_gradient_sync(True)


def reshard(model: torch.nn.Module, accelerator: Accelerator | None = None) -> None:
    """Shards the parameters that FSDP2 and, with ``accelerator``, ZeRO-3 leave whole after a forward without backward:
    head, embeddings, small and prefetched parameters. Pushes to vLLM and swaps of weights need all in shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    prepared = getattr(accelerator, "deepspeed_engine_wrapped", None)
    if prepared is not None and hasattr(prepared.engine.optimizer, "empty_partition_cache"):
        prepared.engine.optimizer.empty_partition_cache()


def held(value: torch.Tensor) -> torch.Tensor:
    """Returns this process's shard of a parameter, or the whole parameter if it is not sharded."""
    part = getattr(value, "ds_tensor", value)
    return part.to_local() if isinstance(part, DTensor) else part


@torch.no_grad()
def part_of(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Shards a tensor, which each process has whole, like a parameter and returns this process's shard, or the whole
    for a parameter that is not sharded. The values are those of the first process."""
    part = held(parameter)
    whole = whole.to(part.device, part.dtype)
    if isinstance(parameter, DTensor):
        return held(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
    if part is parameter:
        return whole
    flat = part.new_zeros(len(part) * dist.get_world_size())
    flat[: whole.numel()] = whole.flatten()
    dist.broadcast(flat, src=0)
    return flat.view(-1, len(part))[dist.get_rank()].clone()


@torch.no_grad()
def whole_of(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Gathers a tensor from its shards on all processes, which are cut as those of the parameter. A collective."""
    if isinstance(parameter, DTensor):
        return DTensor.from_local(
            part, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
        ).full_tensor()
    if held(parameter) is parameter:
        return part
    flat = part.new_empty(len(part) * dist.get_world_size())
    dist.all_gather_into_tensor(flat, part)
    shape = torch.Size(getattr(parameter, "ds_shape", parameter.shape))
    return flat[: shape.numel()].view(shape)


def backward(accelerator: Accelerator, loss: torch.Tensor) -> None:
    """Computes the gradient of a sub-chunk, whose loss is already scaled: DeepSpeed must not scale it again."""
    deepspeed_only = {"scale_wrt_gas": False} if accelerator.distributed_type == DistributedType.DEEPSPEED else {}
    accelerator.backward(loss, **deepspeed_only)


def gradient_norm(accelerator: Accelerator, model: Any) -> float | None:
    """Returns the norm of this process's gradients before the optimiser's step, of a model as accelerate prepared it
    (DeepSpeed's engine knows the norm); `None` where a loss scaler (float16) skips bad steps by itself."""
    if getattr(accelerator, "scaler", None) is not None:
        return None
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        norm = model.get_global_grad_norm()
        return None if norm is None else float(norm)
    local = [held(one.grad) for one in model.parameters() if one.grad is not None]
    return float(torch.nn.utils.get_total_norm(local))


def computes_exactly(accelerator: Accelerator, model: torch.nn.Module) -> bool:
    """Whether the policy's forward is float32 throughout."""
    rounds = accelerator.mixed_precision != "no" or torch.backends.cuda.matmul.allow_tf32
    return not rounds and is_float32(accelerator.unwrap_model(model))


def is_float32(model: torch.nn.Module) -> bool:
    """Whether all weights that a forward multiplies with are float32: an adapter on quantised ones may be bfloat16."""
    kinds = {value.dtype for value in model.parameters() if value.is_floating_point()}
    kinds |= {kind for one in model.modules() if (kind := getattr(one, "compute_dtype", None)) is not None}
    return kinds == {torch.float32}

"""Estimates the memory of a run from its configuration and its model's shape; loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.presets import BACKBONES, Backbone
from alignopsd_trl.models import resolve_model
from alignopsd_trl.scoring.kv_memory import cache_limits
from alignopsd_trl.scoring.teacher_forcing import KEPT_FROM_SCORING

GIB = 2**30
ADAM_BYTES = 8  # two float32 moments for each parameter
COMPUTE_BYTES = 2  # bfloat16
LOGIT_BYTES = 12  # a kept token's number and logit
HEAD_TILE = 4096 * 32768 * COMPUTE_BYTES  # a tile of TRL's head
ENCODERS = {"lexical": 0, "tiny": 130_000, "tiny_situated": 160_000, "Qwen/Qwen3-Embedding-0.6B": 595_776_512}
"""Number of parameters of the named sentence encoders; from the published weights."""


def backbone(name: str, trust_remote_code: bool = False) -> Backbone:
    """Returns the shape of a model, from its name or its config file.

    Raises:
        OSError: if the name is neither in the table nor a folder with a config.
    """
    for known in BACKBONES.values():
        if known.hub_id == name:
            return known
    path = Path(resolve_model(name))
    if not path.is_dir():
        known = ", ".join(one.hub_id for one in BACKBONES.values())
        raise OSError(f"no memory estimate for model={name!r}: give a local folder, or one of {known}")
    return shape_of(name, AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code).get_text_config())


def shape_of(name: str, config: Any) -> Backbone:
    """Returns the shape that a model's text configuration describes."""
    head = config.hidden_size // config.num_attention_heads
    kv = 2 * (config.num_key_value_heads or config.num_attention_heads) * head
    layer = config.hidden_size * (2 * config.hidden_size + kv + 3 * config.intermediate_size)
    words = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    parameters = config.num_hidden_layers * layer + words
    return Backbone(
        name, parameters, config.num_hidden_layers, config.hidden_size, kv, config.vocab_size, config.intermediate_size
    )


def gpu_memory(given: float | None) -> float:
    """Returns the GiB of one GPU: ``given``, else those of this machine's GPU, else 80 (A100, H100)."""
    if given is not None:
        return given
    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 80.0


def encoder_bytes(name: str | None) -> float | None:
    """Returns the bytes of a sentence encoder's float32 weights, or `None` if their number is unknown."""
    if name is None or name in ENCODERS:
        return 4.0 * ENCODERS.get(name or "lexical", 0)
    weights = list(Path(name).rglob("*.safetensors")) if Path(name).is_dir() else []
    return float(sum(path.stat().st_size for path in weights)) or None


@dataclass(frozen=True)
class Estimate:
    """The memory of a run in GiB, by part.

    Args:
        training: parts of the training process, on one GPU.
        host: memory of one node while it loads the weights.
        checkpoint: disk space of one checkpoint.
        kept: disk space of all retained checkpoints and the final model.
    """

    training: dict[str, float]
    host: float
    checkpoint: float
    kept: float

    @property
    def peak(self) -> float:
        """Returns the peak of one GPU: the constant parts, and the larger of the parts of a round and of its update."""
        update, played = (sum(self.training[name] for name in names) for names in (_OF_UPDATE, _OF_ROUND))
        return sum(self.training.values()) - min(update, played)


_OF_UPDATE, _OF_ROUND = ("gradients", "activations"), ("scoring", "prompts")


def estimate(
    shape: Backbone,
    args: AlignOPSDConfig,
    launch: Launch,
    *,
    trained_share: float = 1.0,
    weight_bytes: int = 4,
    encoder: float | None = 0.0,
    gpu_gib: float | None = None,
    kept_logits: int = 0,
) -> Estimate:
    """Estimates the memory of a run.

    The launch shards weights, gradients and Adam's moments. Activations are one checkpointed boundary per layer for
    ``tokens_per_forward`` tokens, plus one full layer and one tile of the vocabulary head.

    Args:
        trained_share: trained share of the parameters; 1 without an adapter.
        weight_bytes: bytes of a loaded parameter: 4, or 2 for ``--dtype bfloat16``.
        encoder: bytes of the encoder's weights; `None` counts none.
        gpu_gib: memory of one GPU; `None` for a run on the CPU.
        kept_logits: logits of a process's round on the device: the teacher's, and their copy in the rows of the update.
    """
    model, trained = shape.parameters * weight_bytes, shape.parameters * trained_share
    referenced = args.beta != 0.0 and trained_share == 1.0
    shares = args.teacher_model_kind == "live" or (args.teacher_model_kind == "base" and referenced)
    gathers = launch.weight_shards > 1
    parts = {
        "weights": model / launch.weight_shards,
        "gradients": trained * weight_bytes / launch.gradient_shards,
        "optimizer": trained * ADAM_BYTES / launch.gradient_shards,
        "reference": model / launch.weight_shards if referenced else 0.0,
        "teacher": 0.0 if shares else trained * weight_bytes / launch.weight_shards,
        "encoder": encoder or 0.0,
        "likeliest tokens": 2.0 * LOGIT_BYTES * kept_logits,
        "activations": _activations(shape, args),
        "scoring": _scoring(shape, args) + (4 * KEPT_FROM_SCORING * shape.hidden if kept_logits else 0.0),
    }
    if launch.strategy == "DDP":
        parts["gradient buckets"] = trained * weight_bytes
    if launch.strategy.startswith("ZeRO"):  # bfloat16 weights, beside the optimiser's float32 weights
        parts["compute copy"] = shape.parameters * COMPUTE_BYTES / launch.weight_shards
    elif not gathers and gpu_gib is not None and weight_bytes == 4 and (trained_share == 1.0 or not args.use_vllm):
        parts["compute copy"] = shape.parameters * COMPUTE_BYTES  # autocast's copy, during a forward or a batch
    if gathers:
        parts["gathered layers"] = _gathered(shape)
    taken = sum(value for name, value in parts.items() if name not in (*_OF_UPDATE, *_OF_ROUND))
    awake = args.vllm_gpu_memory_utilization if _colocated(args) and not args.vllm_enable_sleep_mode else 0.0
    free = None if gpu_gib is None else (1 - awake) * gpu_gib * GIB - taken
    parts["prompts"] = _prompts(shape, args, launch, free, weight_bytes)
    readers = 1 if launch.loads_once else launch.processes_per_node
    host = readers * model * (2 if referenced else 1)
    checkpoint = trained * (weight_bytes + ADAM_BYTES)
    saves = max(args.max_steps // max(int(args.save_steps), 1), 0) if args.save_strategy != "no" else 0
    kept = min(saves, args.save_total_limit or saves) * checkpoint + trained * weight_bytes
    return Estimate({name: value / GIB for name, value in parts.items()}, host / GIB, checkpoint / GIB, kept / GIB)


def _activations(shape: Backbone, args: AlignOPSDConfig) -> float:
    """Returns the bytes of the float32 boundaries of layers, and of the larger of one layer and the vocabulary head in
    the backward pass; checked on tensors without data (`tests/test_memory_counts.py`)."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(min(args.rows_per_forward * longest, args.tokens_per_forward // longest * longest), longest)
    layer = tokens * (48 * shape.hidden + 12 * shape.intermediate)
    head = 8 * shape.vocabulary * shape.hidden
    kept = 4 * tokens * shape.hidden if args.gradient_checkpointing else layer
    return kept * shape.layers + max(layer, head) + HEAD_TILE


def _scoring(shape: Backbone, args: AlignOPSDConfig) -> float:
    """Returns the bytes of one layer and of the mask of packed rows: a boolean and a bfloat16 number for each pair."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(args.scoring_tokens, longest)
    return tokens * (shape.hidden * 2 * 16 + max(args.scoring_tokens // 4, longest) * (1 + COMPUTE_BYTES))


def _prompts(shape: Backbone, args: AlignOPSDConfig, launch: Launch, free: float | None, weight_bytes: int) -> float:
    """Returns the bytes of keys and values of a round's prompts, if the project's own loop samples from a whole model:
    the pool, and the cache of the current batch (`scoring/kv_memory.py`)."""
    if launch.strategy not in ("one process", "DDP") or args.use_vllm or args.use_transformers_continuous_batching:
        return 0.0
    if args.generation_kwargs or args.cache_implementation:
        return 0.0
    if args.top_k not in (None, 0) or args.top_p not in (None, 1.0) or args.min_p not in (None, 0.0):
        return 0.0
    number = weight_bytes if free is None else COMPUTE_BYTES
    longest = (args.max_prompt_length + args.max_completion_length) * shape.kv_width * shape.layers * number
    rows = max(args.per_device_train_batch_size * args.steps_per_generation, args.per_device_eval_batch_size)
    sizes = cache_limits(free, args.kv_memory_share, longest)
    batch = min(sizes.batch, rows * longest) if sizes.bounds_rollout else max(sizes.batch, rows * longest)
    return max(sizes.pool, longest) + batch


def _colocated(args: AlignOPSDConfig) -> bool:
    return args.use_vllm and args.vllm_mode == "colocate"


def _gathered(shape: Backbone) -> float:
    """Returns the bytes of two layers, one that computes and one in transfer, and of embedding and head."""
    words = 2 * shape.vocabulary * shape.hidden
    layer = (shape.parameters - words) / shape.layers
    return (2 * layer + words) * COMPUTE_BYTES


@dataclass(frozen=True)
class Sampler:
    """The share of a GPU that a colocated vLLM takes, in GiB.

    Args:
        share: ``vllm_gpu_memory_utilization`` of the GPU; the sum of the next three.
        weights: bfloat16 weights, divided by the tensor parallel size.
        buffers: activations of one step and the logits of all responses sampled at once.
        cache: remainder for keys and values; negative if the share is too small.
        sequences: number of full-length responses that the cache holds.
    """

    share: float
    weights: float
    buffers: float
    cache: float
    sequences: int


def sampler(shape: Backbone, args: AlignOPSDConfig, gpu_gib: float) -> Sampler | None:
    """Returns the memory of a colocated vLLM by part, or `None` if none shares the trainer's GPU."""
    if not _colocated(args):
        return None
    share, parallel = args.vllm_gpu_memory_utilization * gpu_gib, args.vllm_tensor_parallel_size
    weights = shape.parameters * COMPUTE_BYTES / parallel / GIB
    logits = 3 * args.sampler_sequences * shape.vocabulary * 4
    buffers = (logits + args.sampler_tokens * shape.hidden * 2 * 16) / GIB
    cache = share - weights - buffers
    token = shape.kv_width * shape.layers * 2 / parallel
    sequences = int(max(cache, 0.0) * GIB / token / args.sampler_length)
    return Sampler(share, weights, buffers, cache, sequences)

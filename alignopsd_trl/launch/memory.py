"""About how much memory a run takes, from its configuration and its model's shape alone: no weights are loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.presets import BACKBONES, Backbone
from alignopsd_trl.models import resolve_model
from alignopsd_trl.scoring.kv_memory import cache_limits

GIB = 2**30
ADAM_BYTES = 8  # two float32 moments a parameter
COMPUTE_BYTES = 2  # bfloat16
LOGIT_BYTES = 12  # a kept token's number and logit
HEAD_TILE = 4096 * 32768 * COMPUTE_BYTES  # of TRL's head
ENCODERS = {"lexical": 0, "tiny": 130_000, "tiny_situated": 160_000, "Qwen/Qwen3-Embedding-0.6B": 595_776_512}
"""Parameters of sentence encoders that are named by a name; from the published weights."""


def backbone(name: str) -> Backbone:
    """The shape of a model, from its name or its config file.

    Raises:
        OSError: if it is neither one of the table nor a folder with a config.
    """
    for known in BACKBONES.values():
        if known.hub_id == name:
            return known
    path = Path(resolve_model(name))
    if not path.is_dir():
        known = ", ".join(one.hub_id for one in BACKBONES.values())
        raise OSError(f"no memory estimate for model_name_or_path={name!r}: give a local folder, or one of {known}")
    return shape_of(name, _written_config(path) or AutoConfig.from_pretrained(path).get_text_config())


_SHAPE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "tie_word_embeddings"),
)


def _written_config(path: Path) -> SimpleNamespace | None:
    """A text model's configuration, where its file says all of the shape: transformers' class for it imports every
    model class."""
    file = path / "config.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return SimpleNamespace(**content) if all(content.get(name) is not None for name in _SHAPE) else None


def shape_of(name: str, config: Any) -> Backbone:
    head = config.hidden_size // config.num_attention_heads
    kv = 2 * (config.num_key_value_heads or config.num_attention_heads) * head
    layer = config.hidden_size * (2 * config.hidden_size + kv + 3 * config.intermediate_size)
    words = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    parameters = config.num_hidden_layers * layer + words
    return Backbone(
        name, parameters, config.num_hidden_layers, config.hidden_size, kv, config.vocab_size, config.intermediate_size
    )


def gpu_memory(given: float | None) -> float:
    """GiB of one GPU: what is ``given``, else of the GPU that is here, else 80 (A100, H100)."""
    if given is not None:
        return given
    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else 80.0


def encoder_bytes(name: str | None) -> float | None:
    """Of a sentence encoder's weights, which are float32 on each GPU; `None` where its size can't be told."""
    if name is None or name in ENCODERS:
        return 4.0 * ENCODERS.get(name or "lexical", 0)
    weights = list(Path(name).rglob("*.safetensors")) if Path(name).is_dir() else []
    return float(sum(path.stat().st_size for path in weights)) or None


@dataclass(frozen=True)
class Estimate:
    """GiB, by part.

    Args:
        training: on one GPU, of the training process.
        host: of one node, while the weights are loaded.
        checkpoint: on disk, of one checkpoint.
        kept: on disk, of all checkpoints that are kept and the final model.
    """

    training: dict[str, float]
    host: float
    checkpoint: float
    kept: float

    @property
    def peak(self) -> float:
        """Of one GPU: what is always there, and the larger of what a round and its update need."""
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
    """The memory of a run.

    Weights, gradients and Adam's moments are divided as the launch shards them; activations are those of one
    checkpointed layer boundary per layer for ``tokens_per_forward`` tokens, plus one full layer and one tile of the
    vocabulary head.

    Args:
        trained_share: of the parameters; 1 without an adapter.
        weight_bytes: of a parameter as it is loaded: 4, or 2 for ``--dtype bfloat16``.
        encoder: bytes of its weights; `None` counts none.
        gpu_gib: of one GPU; `None` for a run on the CPU.
        kept_logits: of a process's round, on the device: the teacher's and the copy in the rows of the update.
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
        "scoring": _scoring(shape, args),
    }
    if launch.strategy == "DDP":
        parts["gradient buckets"] = trained * weight_bytes
    if launch.strategy.startswith("ZeRO"):  # bfloat16 to compute with, beside the float32 weights of the optimiser
        parts["compute copy"] = shape.parameters * COMPUTE_BYTES / launch.weight_shards
    elif not gathers and gpu_gib is not None and weight_bytes == 4 and (trained_share == 1.0 or not args.use_vllm):
        parts["compute copy"] = shape.parameters * COMPUTE_BYTES  # autocast's, while a forward or a batch is under way
    if gathers:
        parts["gathered layers"] = _gathered(shape)
    taken = sum(value for name, value in parts.items() if name not in (*_OF_UPDATE, *_OF_ROUND))
    free = None if gpu_gib is None else gpu_gib * GIB - taken - _engine_bytes(args, gpu_gib)
    parts["prompts"] = _prompts(shape, args, launch, free, weight_bytes)
    readers = 1 if launch.loads_once else launch.processes_per_node
    host = readers * model * (2 if referenced else 1)
    checkpoint = trained * (weight_bytes + ADAM_BYTES)
    saves = max(args.max_steps // max(int(args.save_steps), 1), 0) if args.save_strategy != "no" else 0
    kept = min(saves, args.save_total_limit or saves) * checkpoint + trained * weight_bytes
    return Estimate({name: value / GIB for name, value in parts.items()}, host / GIB, checkpoint / GIB, kept / GIB)


def _activations(shape: Backbone, args: AlignOPSDConfig) -> float:
    """Float32 boundaries of layers, and the larger of what one layer and the vocabulary's head need in the backward
    pass; counted on tensors without data (`tests/test_memory_counts.py`)."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(min(args.rows_per_forward * longest, args.tokens_per_forward // longest * longest), longest)
    layer = tokens * (48 * shape.hidden + 12 * shape.intermediate)
    head = 8 * shape.vocabulary * shape.hidden
    kept = 4 * tokens * shape.hidden if args.gradient_checkpointing else layer
    return kept * shape.layers + max(layer, head) + HEAD_TILE


def _scoring(shape: Backbone, args: AlignOPSDConfig) -> float:
    """One layer at a time, and the mask of packed rows: a boolean and its bfloat16 copy for each pair of positions."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(args.scoring_tokens, longest)
    return tokens * (shape.hidden * 2 * 16 + max(args.scoring_tokens // 4, longest) * (1 + COMPUTE_BYTES))


def _prompts(shape: Backbone, args: AlignOPSDConfig, launch: Launch, free: float | None, weight_bytes: int) -> float:
    """Keys and values of a round's prompts, where the project's own loop samples from a whole model: the pool, and the
    cache of what is sampled at once (`scoring/kv_memory.py`)."""
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


def _engine_bytes(args: AlignOPSDConfig, gpu_gib: float) -> float:
    """Of a colocated sampler that does not sleep while the trainer works."""
    if not args.use_vllm or args.vllm_mode != "colocate" or args.vllm_enable_sleep_mode:
        return 0.0
    return args.vllm_gpu_memory_utilization * gpu_gib * GIB


def _gathered(shape: Backbone) -> float:
    """Two layers, the one that computes and the one that is fetched meanwhile, and embedding and head."""
    words = 2 * shape.vocabulary * shape.hidden
    layer = (shape.parameters - words) / shape.layers
    return (2 * layer + words) * COMPUTE_BYTES


@dataclass(frozen=True)
class Sampler:
    """A colocated vLLM's share of a GPU, GiB.

    Args:
        share: all of it, ``vllm_gpu_memory_utilization`` of the GPU.
        weights: bfloat16, divided by the tensor parallel size.
        buffers: activations of one step and the logits of all responses sampled at once.
        cache: what is left for keys and values; negative if the share is too small.
        sequences: full-length responses that the cache holds at once.
        limit: responses that are sampled at once, at most.
    """

    share: float
    weights: float
    buffers: float
    cache: float
    sequences: int
    limit: int


def sampler(shape: Backbone, args: AlignOPSDConfig, gpu_gib: float) -> Sampler | None:
    """`None` where no engine shares the trainer's GPU."""
    if not args.use_vllm or args.vllm_mode != "colocate":
        return None
    parallel = args.vllm_tensor_parallel_size
    share = args.vllm_gpu_memory_utilization * gpu_gib
    weights = shape.parameters * COMPUTE_BYTES / parallel / GIB
    logits = 3 * args.sampler_sequences * shape.vocabulary * 4
    buffers = (logits + args.sampler_tokens * shape.hidden * 2 * 16) / GIB
    cache = share - weights - buffers
    token = shape.kv_width * shape.layers * 2 / parallel
    sequences = int(max(cache, 0.0) * GIB / token / args.sampler_length)
    return Sampler(share, weights, buffers, cache, sequences, args.sampler_sequences)

"""Estimates the memory of a run from its configuration and its model's shape; loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.presets import Backbone
from alignopsd_trl.launch.shapes import SERVED_BYTES, Loading
from alignopsd_trl.scoring.kv_memory import cache_limits
from alignopsd_trl.scoring.teacher_forcing import KEPT_FROM_SCORING

GIB = 2**30
COMPUTE_BYTES = 2  # bfloat16
LOGIT_BYTES = 12  # a kept token's number and logit
HEAD_TILE = 4096 * 32768 * COMPUTE_BYTES  # a tile of TRL's head
ENCODERS = {"lexical": 0, "tiny": 130_000, "tiny_situated": 160_000, "Qwen/Qwen3-Embedding-0.6B": 595_776_512}
"""Number of parameters of the named sentence encoders; from the published weights."""


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
        """Returns the peak of one GPU beside its sampler: the constant parts, and the larger of the parts of a round
        and of its update."""
        update, played = (sum(self.training[name] for name in names) for names in (_OF_UPDATE, _OF_ROUND))
        return sum(self.training.values()) - min(update, played)

    @property
    def standing(self) -> float:
        """Returns what is on the GPU while a vLLM samples: all parts but those of scoring and update."""
        return sum(value for name, value in self.training.items() if name not in (*_OF_UPDATE, *_OF_ROUND, AUTOCAST))


_OF_UPDATE, _OF_ROUND, AUTOCAST = ("gradients", "activations"), ("scoring", "prompts"), "compute copy"


def estimate(
    shape: Backbone,
    args: AlignOPSDConfig,
    launch: Launch,
    loaded: Loading = Loading(),  # noqa: B008 (it is frozen)
    *,
    teaches: bool = True,
    encoder: float | None = 0.0,
    gpu_gib: float | None = None,
    kept_logits: int = 0,
) -> Estimate:
    """Estimates the memory of a run.

    The launch shards weights, gradients and Adam's moments. Activations are one checkpointed boundary per layer for
    ``tokens_per_forward`` tokens, plus one full layer and one tile of the vocabulary head.

    Args:
        loaded: how the weights are there; by default all of them in float32, and all trained.
        teaches: whether the run asks a teacher.
        encoder: bytes of the encoder's weights; `None` counts none.
        gpu_gib: memory of one GPU; `None` for a run on the CPU.
        kept_logits: logits of a process's round on the device: the teacher's, and their copy in the rows of the update.
    """
    model, whole = shape.parameters * loaded.weight_bytes, loaded.trained_share == 1.0
    trained = shape.parameters * loaded.trained_share * loaded.trained_bytes  # with an adapter, the adapter's
    referenced, kind = args.beta != 0.0 and whole, args.teacher_model_kind
    copied = teaches and (kind == "ema" or (kind == "base" and (args.sync_ref_model or not referenced)))
    gathers = launch.weight_shards > 1
    parts = {
        "weights": (trained if whole else model + trained) / launch.weight_shards,
        "gradients": trained / launch.gradient_shards,
        "optimizer": 2 * trained / launch.gradient_shards,  # Adam's moments, of the parameters' type
        "reference": model / launch.weight_shards if referenced else 0.0,
        "teacher": trained / launch.weight_shards if copied else 0.0,
        "encoder": encoder or 0.0,
        "likeliest tokens": 2.0 * LOGIT_BYTES * kept_logits,
        "activations": _activations(shape, args, loaded.number_bytes),
        "scoring": _scoring(shape, args) + (4 * KEPT_FROM_SCORING * shape.hidden if kept_logits else 0.0),
    }
    if launch.strategy == "DDP":
        parts["gradient buckets"] = trained
    if launch.strategy.startswith("ZeRO"):  # bfloat16 weights, beside the optimiser's float32 weights
        parts["bfloat16 weights"] = shape.parameters * loaded.trained_share * COMPUTE_BYTES / launch.weight_shards
    elif not gathers and gpu_gib is not None and loaded.weight_bytes == 4 and (whole or not args.use_vllm):
        parts[AUTOCAST] = shape.parameters * COMPUTE_BYTES  # during a forward or a batch
    if gathers:
        parts["gathered layers"] = _gathered(shape)
    taken = sum(value for name, value in parts.items() if name not in (*_OF_UPDATE, *_OF_ROUND))
    awake = args.vllm_gpu_memory_utilization if _colocated(args) and not args.vllm_enable_sleep_mode else 0.0
    free = None if gpu_gib is None else (1 - awake) * gpu_gib * GIB - taken
    parts["prompts"] = _prompts(shape, args, launch, free, loaded.weight_bytes)
    readers = 1 if launch.loads_once else launch.processes_per_node
    host = readers * max(model, shape.parameters * COMPUTE_BYTES) * (2 if referenced else 1)  # 4 bits are made there
    checkpoint = 3 * trained
    saves = max(args.max_steps // max(int(args.save_steps), 1), 0) if args.save_strategy != "no" else 0
    kept = min(saves, args.save_total_limit or saves) * checkpoint + trained
    return Estimate({name: value / GIB for name, value in parts.items()}, host / GIB, checkpoint / GIB, kept / GIB)


def _activations(shape: Backbone, args: AlignOPSDConfig, number_bytes: int) -> float:
    """Returns the bytes of the boundaries of layers, and of the larger of one layer and the vocabulary head in
    the backward pass; checked on tensors without data (`tests/launch/test_memory_counts.py`)."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(min(args.rows_per_forward * longest, args.tokens_per_forward // longest * longest), longest)
    layer = tokens * (48 * shape.hidden + 12 * shape.intermediate)
    head = 8 * shape.vocabulary * shape.hidden
    kept = number_bytes * tokens * shape.hidden if args.gradient_checkpointing else layer
    return kept * shape.layers + max(layer, head) + HEAD_TILE


def _scoring(shape: Backbone, args: AlignOPSDConfig) -> float:
    """Returns the bytes of one layer and of the mask of packed rows: a boolean and a bfloat16 number for each pair."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(args.scoring_tokens, longest)
    return tokens * (shape.hidden * 2 * 16 + max(args.scoring_tokens // 4, longest) * (1 + COMPUTE_BYTES))


def _prompts(shape: Backbone, args: AlignOPSDConfig, launch: Launch, free: float | None, weight_bytes: float) -> float:
    """Returns the bytes of keys and values of a round's prompts, if the project's own loop samples from a whole model:
    the pool, and the cache of the current batch (`scoring/kv_memory.py`)."""
    if (
        not shape.own_loop
        or launch.strategy not in ("one process", "DDP")
        or args.use_vllm
        or args.use_transformers_continuous_batching
    ):
        return 0.0
    if args.generation_kwargs or args.cache_implementation:
        return 0.0
    if args.top_k not in (None, 0) or args.top_p not in (None, 1.0) or args.min_p not in (None, 0.0):
        return 0.0
    number = weight_bytes if free is None else COMPUTE_BYTES
    longest = int(shape.row(args.max_prompt_length + args.max_completion_length) * number)
    rows = max(args.per_device_train_batch_size * args.steps_per_generation, args.per_device_eval_batch_size)
    sizes = cache_limits(free, longest)
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
        weights: weights with an adapter's, divided by the tensor parallel size.
        buffers: activations of one step and the logits of all responses sampled at once.
        cache: remainder for keys and values; negative if the share is too small.
        sequences: number of full-length responses that the cache holds.
    """

    share: float
    weights: float
    buffers: float
    cache: float
    sequences: int


def sampler(
    shape: Backbone, args: AlignOPSDConfig, gpu_gib: float, served_bytes: float = SERVED_BYTES
) -> Sampler | None:
    """Returns the memory of a colocated vLLM by part, or `None` if none shares the trainer's GPU.

    Args:
        served_bytes: of a parameter, on average.
    """
    if not _colocated(args):
        return None
    share, parallel = args.vllm_gpu_memory_utilization * gpu_gib, args.vllm_tensor_parallel_size
    weights = shape.parameters * served_bytes / parallel / GIB
    logits = 3 * args.sampler_sequences * shape.vocabulary * 4
    buffers = (logits + args.sampler_tokens * shape.hidden * 2 * 16) / GIB
    cache = share - weights - buffers
    row = shape.row(args.sampler_length) * COMPUTE_BYTES / parallel
    sequences = int(max(cache, 0.0) * GIB / row) if row else args.sampler_sequences
    return Sampler(share, weights, buffers, cache, sequences)

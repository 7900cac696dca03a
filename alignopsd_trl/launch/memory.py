"""Estimates the memory of a run from its configuration and its model's shape; loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.presets import Backbone
from alignopsd_trl.launch.shapes import SERVED_BYTES, Loading
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
        """Returns the peak of one GPU beside its sampler: the constant parts, and the larger of a round's scoring and
        its update."""
        update = self.training["gradients"] + self.training["activations"]
        return sum(self.training.values()) - min(update, self.training["scoring"])

    @property
    def standing(self) -> float:
        """Returns what is on the GPU while a vLLM samples: all parts but those of scoring and update."""
        passing = ("gradients", "activations", "scoring", AUTOCAST)
        return sum(value for name, value in self.training.items() if name not in passing)


AUTOCAST = "compute copy"


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
    copied = teaches and kind == "base" and (args.sync_ref_model or not referenced)
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
    if gathers:  # two layers, one that computes and one in transfer, and embedding and head
        words = 2 * shape.vocabulary * shape.hidden
        parts["gathered layers"] = (2 * (shape.parameters - words) / shape.layers + words) * COMPUTE_BYTES
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
    tokens = max(args.tokens_per_forward // longest * longest, longest)
    layer = tokens * (48 * shape.hidden + 12 * shape.intermediate)
    head = 8 * shape.vocabulary * shape.hidden
    kept = number_bytes * tokens * shape.hidden if args.gradient_checkpointing else layer
    return kept * shape.layers + max(layer, head) + HEAD_TILE


def _scoring(shape: Backbone, args: AlignOPSDConfig) -> float:
    """Returns the bytes of one layer and of the mask of packed rows: a boolean and a bfloat16 number for each pair."""
    longest = args.max_prompt_length + args.max_completion_length
    tokens = max(args.tokens_per_forward, longest)
    return tokens * (shape.hidden * 2 * 16 + max(args.tokens_per_forward // 4, longest) * (1 + COMPUTE_BYTES))


@dataclass(frozen=True)
class Sampler:
    """The share of a GPU that a colocated vLLM takes, in GiB.

    Args:
        share: ``vllm_gpu_memory_utilization`` of the GPU; the sum of the next three.
        weights: weights with an adapter's, divided by the tensor parallel size.
        buffers: activations of one step and the logits of all responses sampled at once.
        cache: remainder for keys and values; negative if the share is too small.
        sequences: number of full-length responses that the cache holds.
        most: number of responses that are sampled at once.
    """

    share: float
    weights: float
    buffers: float
    cache: float
    sequences: int
    most: int


def sampler(
    shape: Backbone, args: AlignOPSDConfig, gpu_gib: float, served_bytes: float = SERVED_BYTES
) -> Sampler | None:
    """Returns the memory of a colocated vLLM by part, or `None` if none shares the trainer's GPU.

    Args:
        served_bytes: of a parameter, on average.
    """
    engine = args.engine_options
    if engine is None:
        return None
    share, parallel = args.vllm_gpu_memory_utilization * gpu_gib, args.vllm_tensor_parallel_size
    weights = shape.parameters * served_bytes / parallel / GIB
    logits = 3 * engine["max_num_seqs"] * shape.vocabulary * 4
    buffers = (logits + engine["max_num_batched_tokens"] * shape.hidden * 2 * 16) / GIB
    cache = share - weights - buffers
    row = shape.row(engine["max_model_len"]) * COMPUTE_BYTES / parallel
    sequences = int(max(cache, 0.0) * GIB / row) if row else engine["max_num_seqs"]
    return Sampler(share, weights, buffers, cache, sequences, engine["max_num_seqs"])

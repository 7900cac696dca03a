"""Estimates the memory of a run from its configuration and its model's shape, counted on a model without weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from trl import ModelConfig, get_peft_config

from alignopsd_trl.checks.loading import check_quantised, model_of, put_adapter
from alignopsd_trl.commands.launch.machine import Launch
from alignopsd_trl.commands.launch.model_files import config_file
from alignopsd_trl.commands.launch.presets import BACKBONES, Backbone
from alignopsd_trl.common.models import base_of, resolve_model, unreadable
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.scoring.teacher_forcing import KEPT_FROM_SCORING

BLOCK = 64  # weights that share one scale in bitsandbytes' 4 bits
NESTED = 1 / BLOCK + 4 / (BLOCK * 256)  # bytes a weight: scales of one byte, and a float32 for each 256 of them
KEPT = {None, "full_attention", "sliding_attention", "chunked_attention"}  # layers that keep keys and values
SERVED_BYTES = 2  # bfloat16, of a weight in vLLM
_PUBLISHED = {one.hub_id: one for one in BACKBONES.values()}


def backbone(name: str, trust_remote_code: bool = False) -> Backbone:
    """Returns the shape of a model, from its name or its config file. Raises `ValueError` if the name is neither in the
    table nor a folder with a config nor known to the Hub, if transformers can't make it, or its weights are
    quantised."""
    name = base_of(name) or name
    return _PUBLISHED.get(name) or shape_of(name, config_of(name, trust_remote_code), trust_remote_code)


@cache
def config_of(name: str, trust_remote_code: bool = False) -> Any:
    """Returns the configuration of a model of the table, a folder or the Hub, of an adapter's base; raises as
    `backbone`."""
    name = base_of(name) or name
    if name in _PUBLISHED:
        return published(_PUBLISHED[name])
    path = Path(resolve_model(name)).expanduser()
    if not path.is_dir():
        path = config_file(name).parent
    with unreadable(path, "config.json"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(
            f"model={name!r} holds quantised weights, whose memory no plan counts; name the model that they were made "
            "from, with --load_in_4bit"
        )
    return config


def published(shape: Backbone) -> Any:
    """Returns the configuration of a shape of Qwen2.5 or Qwen3, as published."""
    third = "/Qwen3-" in shape.hub_id
    head = 128 if third else shape.hidden // shape.heads
    return AutoConfig.for_model(
        "qwen3" if third else "qwen2",
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_width // 2 // head,
        head_dim=head,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.hub_id != BACKBONES["7b"].hub_id,
        max_position_embeddings=40_960 if third else 32_768,
    )


def shape_of(name: str, config: Any, trust_remote_code: bool = False) -> Backbone:
    """Returns the shape that a model's configuration describes; its parameters are those of the model itself."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or [None] * text.num_hidden_layers
    caches = tuple(_cache(layer, kind) for layer, kind in zip(text.per_layer_config, kinds, strict=False))
    mixed = ["mamba"] if any(option.startswith(("mamba_", "ssm_")) for option in vars(text)) else []
    stateful = sorted(set(kinds) - KEPT) or mixed
    return Backbone(
        *(name, _numbers(_empty(config, trust_remote_code).parameters())),
        *(text.num_hidden_layers, text.hidden_size, max(width for width, _ in caches), text.vocab_size),
        max(map(_intermediate, text.per_layer_config)),
        caches=caches,
        uncounted=f"states of its layers of {', '.join(stateful)}" if stateful else "",
    )


def _cache(layer: Any, kind: str | None) -> tuple[int, int]:
    """Returns a layer's key and value channels a token (of latent attention vLLM's), and the tokens kept, 0 for all."""
    if kind not in KEPT:
        return 0, 0
    if rank := getattr(layer, "kv_lora_rank", None):
        return rank + layer.qk_rope_head_dim, 0
    head = getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads
    heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
    window = "attention_chunk_size" if kind == "chunked_attention" else "sliding_window"
    return 2 * heads * head, 0 if kind == "full_attention" else getattr(layer, window, None) or 0


def _intermediate(layer: Any) -> int:
    """Returns the channels that a token has inside a layer: of the experts that it visits and of those that all do."""
    dense = getattr(layer, "intermediate_size", None) or 4 * layer.hidden_size
    if not any(getattr(layer, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return dense
    expert = getattr(layer, "moe_intermediate_size", None) or dense
    whole = (getattr(layer, name, None) for name in ("shared_expert_intermediate_size", "shared_intermediate_size"))
    shared = next(filter(None, whole), (getattr(layer, "n_shared_experts", None) or 0) * expert)
    return max(layer.num_experts_per_tok * expert + shared, dense)


def _numbers(weights: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() for one in weights)


def _empty(config: Any, trust_remote_code: bool = False) -> Any:
    with torch.device("meta"):
        return model_of(config, trust_remote_code)


@dataclass(frozen=True)
class Loading:
    """How a model's weights are there."""

    weight_bytes: float = 4  # of a parameter in the trainer, on average
    trained_share: float = 1.0  # the adapter's parameters per parameter of the model; 1 without an adapter
    trained_bytes: float = 4  # of a trained parameter, its gradient and each of Adam's moments
    served_bytes: float = SERVED_BYTES  # of a parameter in a colocated vLLM, on average, with the adapter
    number_bytes: int = 4  # of a weight that is not quantised, and of the hidden states between layers


def loading(config: Any, model: ModelConfig, args: AlignOPSDConfig, launch: Launch) -> Loading:
    """Returns how a recipe's flags load a model of this configuration. PEFT itself makes the adapter, of float32.
    Raises `ValueError` as `check_quantised`, or if PEFT refuses the adapter."""
    number = 2 if model.dtype in ("bfloat16", "float16") else 4
    adapts = model.use_peft or base_of(str(model.model_name_or_path)) is not None
    bits = {name: getattr(model, name) for name in ("load_in_4bit", "load_in_8bit")}
    if any(bits.values()):
        check_quantised(bits, args, adapts, elsewhere=True, processes=launch.processes)
    if not adapts:
        masters = launch.strategy in ("FSDP2", "ZeRO-2", "ZeRO-3")  # they train float32 weights
        return Loading(number, 1.0, 4 if masters else number, number_bytes=number)
    empty = _empty(config, args.trust_remote_code)
    whole, head = _numbers(empty.parameters()), empty.get_output_embeddings()
    linear = (one.weight for one in empty.modules() if isinstance(one, torch.nn.Linear) and one is not head)
    low = _numbers(linear) / whole if model.load_in_4bit else 0.0
    small = 0.5 + (NESTED if model.use_bnb_nested_quant else 4 / BLOCK)
    share = _adapter(empty, model) / whole
    return Loading(low * small + (1 - low) * number, share, 4, (1 + share) * SERVED_BYTES, number)


def _adapter(empty: Any, model: ModelConfig) -> int:
    chosen: Any = get_peft_config(model)  # says it where PEFT is not installed
    from peft import PeftConfig

    if base_of(str(model.model_name_or_path)) is not None:
        chosen = PeftConfig.from_pretrained(resolve_model(str(model.model_name_or_path)))
    adapted = put_adapter(empty, chosen)
    return _numbers(one for one in adapted.parameters() if one.requires_grad)


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
class RunMemory:
    """The memory of a run in GiB, by part."""

    training: dict[str, float]  # parts of the training process, on one GPU
    host: float  # memory of one node while it loads the weights
    checkpoint: float  # disk space of one
    kept: float  # disk space of all retained checkpoints and the final model

    @property
    def peak(self) -> float:
        """Returns one GPU's peak beside its sampler: the constant parts, and the larger of scoring and update."""
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
) -> RunMemory:
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
    return RunMemory({name: value / GIB for name, value in parts.items()}, host / GIB, checkpoint / GIB, kept / GIB)


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
class SamplerMemory:
    """The share of a GPU that a colocated vLLM takes, in GiB."""

    share: float  # ``vllm_gpu_memory_utilization`` of the GPU; the sum of the next three
    weights: float  # with an adapter's, divided by the tensor parallel size
    buffers: float  # activations of one step and the logits of all responses sampled at once
    cache: float  # remainder for keys and values; negative if the share is too small
    sequences: int  # number of full-length responses that the cache holds
    most: int  # number of responses that vLLM samples at once


def sampler(
    shape: Backbone, args: AlignOPSDConfig, gpu_gib: float, served_bytes: float = SERVED_BYTES
) -> SamplerMemory | None:
    """Returns the memory of a colocated vLLM by part, or `None` if none shares the trainer's GPU."""
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
    return SamplerMemory(share, weights, buffers, cache, sequences, engine["max_num_seqs"])

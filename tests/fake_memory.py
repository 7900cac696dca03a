"""Bytes that an update holds at once, counted on tensors without data."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PreTrainedConfig
from trl.kernels import chunked_logprob
from trl.trainer.utils import add_fused_lm_head


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that are alive.

    Attributes:
        now, peak: bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def add(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            self.add(value)
        return found


@contextlib.contextmanager
def head_in_place() -> Generator[None]:
    """TRL's head as on a GPU, where Triton's kernels fold a tile, and a product is added, without a copy; in torch each
    of some 30,000 tiles' operations would also take Python's time."""
    with contextlib.ExitStack() as stack:
        for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
            stack.enter_context(mock.patch.object(chunked_logprob, name, lambda *arguments, **options: None))
        yield


class Adapted(torch.nn.Module):
    """A linear layer with LoRA in float32; PEFT's own can't be moved among tensors without data."""

    def __init__(self, base: torch.nn.Linear, rank: int):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.up(self.down(hidden.to(self.down.weight.dtype)))


def adapt(model: Any, rank: int) -> None:
    """Freezes a model but for adapters of its queries and values, as PEFT does by default."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), rank))
    model.enable_input_require_grads()


def update_peak(config: PreTrainedConfig, rows: int, tokens: int, rank: int = 0) -> int:
    """Bytes at the peak of the second sub-chunk's forward and backward, with Adam's moments there, in bfloat16 over
    float32 weights and with gradient checkpointing; with LoRA of a rank, over frozen bfloat16 weights."""
    with head_in_place(), FakeTensorMode(), LiveBytes() as counted:
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if rank else torch.float32).train()
        add_fused_lm_head(model, 1.0)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if rank:
            adapt(model, rank)
        moments = [torch.zeros_like(value) for value in model.parameters() if value.requires_grad for _ in range(2)]
        for value in model.parameters():
            counted.add(value)
        counted.peak = counted.now
        ids = torch.zeros((rows, tokens), dtype=torch.int64)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(input_ids=ids, labels=ids, fused_lm_head=True, use_cache=False)
            output.log_probs.sum().backward()
            del output
        del moments
    return counted.peak

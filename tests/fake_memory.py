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
from transformers import Qwen2Config, Qwen2ForCausalLM
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


def update_peak(config: Qwen2Config, rows: int, tokens: int) -> int:
    """Bytes at the peak of the second sub-chunk's forward and backward, with Adam's moments there, in bfloat16 over
    float32 weights and with gradient checkpointing."""
    with head_in_place(), FakeTensorMode(), LiveBytes() as counted:
        model = Qwen2ForCausalLM(config).train()
        add_fused_lm_head(model, 1.0)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        moments = [torch.zeros_like(value) for value in model.parameters() for _ in range(2)]
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

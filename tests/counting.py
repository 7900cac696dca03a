"""What a computation asks of torch: casts, calls of attention, the largest tensor."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Operations(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        casts: how many tensors were made in another dtype.
        cast_bytes: of what was cast.
        weight_casts: of them, those of one of the given weights' shapes.
        most_rows: of the tensors with that many ``columns`` that came out of an operation.
    """

    def __init__(self, weights: torch.nn.Module | None = None, columns: int = 0):
        super().__init__()
        self._columns = columns
        self._weights = {value.shape for value in weights.parameters() if value.dim() == 2} if weights else set()
        self.casts = self.weight_casts = self.cast_bytes = self.most_rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and found.dtype != args[0].dtype:
            self.casts += 1
            self.cast_bytes += args[0].numel() * args[0].element_size()
            self.weight_casts += args[0].shape in self._weights
        made = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor) and one.dim() > 1]
        rows = [one.numel() // self._columns for one in made if one.size(-1) == self._columns > 0]
        self.most_rows = max([self.most_rows, *rows])
        return found


@contextlib.contextmanager
def attention_calls(
    patch: pytest.MonkeyPatch, phase: Callable[[], str | None] = lambda: None
) -> Generator[dict[str | None, Counter[str]]]:
    """Counts the calls of scaled dot-product attention by phase: with a ``"mask"``, ``"causal"`` without one, or
    ``"free"``; those of a single query as ``"step"``; and as ``"repeated"`` those whose keys were repeated for grouped
    heads, of a model that has half as many key heads as query heads."""
    counted: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    inner, forward, single = torch.nn.functional.scaled_dot_product_attention, ALL_ATTENTION_FUNCTIONS["sdpa"], False

    def enter(module: torch.nn.Module, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        nonlocal single
        single = query.size(2) == 1  # transformers may lay the heads of a group into this dimension afterwards
        return forward(module, query, *rest, **options)

    def attend(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        masked = options.get("attn_mask") is not None
        kind = "mask" if masked else "causal" if options.get("is_causal") else "free"
        counted[phase()]["step" if single else kind] += 1
        if key.size(1) == query.size(1) and not single:
            counted[phase()]["repeated"] += 1
        return inner(query, key, *rest, **options)

    with patch.context() as patched:
        patched.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", enter)
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
        yield counted

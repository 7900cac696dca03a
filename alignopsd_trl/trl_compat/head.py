"""The policy's forward and its vocabulary head, on the positions alone that somebody reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint
from trl.trainer import utils as trl_utils

from alignopsd_trl.patched import patched
from alignopsd_trl.trl_compat.model import why_not_shared

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from alignopsd_trl.trl_compat import Trainer

TILE = 1024  # positions whose logits are made at once


def head_on_labels(device: torch.device) -> AbstractContextManager[None]:
    """TRL's fused head takes the labelled positions alone. It does so by itself where Triton runs; on CPU and MPS it
    would project every position of the prompt and the padding as well."""
    if device.type not in ("cpu", "mps"):
        return contextlib.nullcontext()
    return patched(trl_utils, _use_triton=lambda device: True)


def head_in_tiles(
    model: PreTrainedModel, pick: Callable[[torch.Tensor, int], torch.Tensor], views: int = 1
) -> AbstractContextManager[None]:
    """While a model's forward runs: of the vocabulary head's logits it gives what ``pick`` takes. They are made for
    `TILE` positions at a time, in the backward pass again: never for a whole batch.

    Args:
        pick: from logits ``(n, views, V)`` of positions, and the number of the first of them, to ``(n, K)``.
        views: rows, one after another, that are views of one response; the forward gives one row for all.
    """
    head: Any = model.get_output_embeddings()
    inner = head.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        shape, size = (len(hidden) // views, hidden.size(1)), max(TILE // views, 1)
        flat = hidden.unflatten(0, (shape[0], views)).transpose(1, 2).flatten(0, 1)
        tiles = [
            checkpoint(lambda part, first: pick(inner(part), first), part, number * size, use_reentrant=False)
            for number, part in enumerate(flat.split(size))
        ]
        return torch.cat(tiles).unflatten(0, shape)

    return patched(head, forward=forward)


def as_causal(trainer: Trainer, model: torch.nn.Module) -> Callable:
    """The model, without masks where it needs none (`padded_behind`). It does with sliding windows, layers of other
    kinds, positions that depend on the row's length, and flash attention, which packs the real tokens by the mask."""
    return model if why_not_shared(trainer) else partial(padded_behind, model)


def moved_by(trainer: Trainer, attention_mask: torch.Tensor) -> torch.Tensor:
    """``(R, 1)``: how many positions towards the front `as_causal` moves a row's tokens."""
    first = attention_mask.argmax(dim=1, keepdim=True)
    return torch.zeros_like(first) if why_not_shared(trainer) else first


def padded_behind(
    model: torch.nn.Module, labels: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: Any
) -> Any:
    """The model's output for rows ``(R, T)`` that are padded in front, computed with all padding behind and no mask, so
    that attention may take its fastest kernel and repeats no keys for grouped heads: no token sees what follows it."""
    column = torch.arange(input_ids.size(1), device=input_ids.device)
    first = attention_mask.argmax(dim=1, keepdim=True)
    forth, back = (column + first) % len(column), (column[:-1] - first) % len(column)
    output = model(input_ids=input_ids.gather(1, forth), labels=labels.gather(1, forth), **inputs)
    for name in ("log_probs", "entropy"):  # (R, T - 1): each position predicts the next token
        if (values := getattr(output, name, None)) is not None:
            values = values.gather(1, back.clamp(max=len(column) - 2))
            setattr(output, name, values.masked_fill(labels[:, 1:] == -100, 0.0))
    return output


class Body:
    """What of a causal model comes before its vocabulary head: it runs once, and its hidden states are read twice.

    Args:
        model: the causal model, or what adapts it.
    """

    def __init__(self, model: Any):
        self._module = model.get_decoder()
        self._output: Any = None

    def watched(self) -> AbstractContextManager[None]:
        """While the model's forward runs: its hidden states are kept, with their gradient."""
        inner = self._module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._output = inner(*args, **kwargs)
            return self._output

        return patched(self._module, forward=forward)

    def replayed(self, places: torch.Tensor) -> AbstractContextManager[None]:
        """While the model's forward runs again: the kept states at positions ``places`` ``(R, n)`` come to its head."""
        hidden, kind = self._output.last_hidden_state, type(self._output)
        hidden = hidden.gather(1, places.unsqueeze(-1).expand(-1, -1, hidden.size(-1)))
        output = kind(**{**self._output, "last_hidden_state": hidden})
        return patched(self._module, forward=lambda *args, **kwargs: output)


class WatchedModel:
    """The policy as TRL's loss calls it, with labels on the tokens alone that the loss reads: what the environment said
    between the turns of a row needs no vocabulary head.

    Args:
        read: ``(rows, L)``, not 0 on these tokens at the rows' end.

    Attributes:
        log_probs, entropies: ``(rows, L)`` of the last forward, with gradient; 0 where the loss does not read them.
    """

    def __init__(self, model: Callable, read: torch.Tensor):
        self._model, self._read = model, read
        self.log_probs = self.entropies = torch.zeros(read.shape, device=read.device)

    def __call__(self, labels: torch.Tensor, **inputs: Any) -> Any:
        length = self._read.size(1)
        labels = labels.clone()
        labels[:, -length:].masked_fill_(self._read == 0, -100)
        output = self._model(labels=labels, **inputs)
        self.log_probs, self.entropies = output.log_probs[:, -length:], output.entropy[:, -length:]
        return output

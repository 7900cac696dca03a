"""Scores with one causal model: its hidden states, kept for a second use, and its vocabulary head, which reads a few
positions at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import Cache

from alignopsd_trl.common.patched import patched
from alignopsd_trl.scoring.packing import Packed, Ragged, attention_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Mix = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Row numbers ``(n,)`` and the logits ``(n, views, V)`` of a response's views -> their mixture ``(n, V)``."""
Before = Callable[[], Cache]
"""Returns the cache of the paths of packed rows, which the rows then do not contain. It is called under the weights
that score."""
TILE, TILE_ON_CPU = 1024, 64
"""Positions whose logits are computed at once. On a CPU they are so few that the next step finds them in its cache."""


def head_in_tiles(
    model: PreTrainedModel, pick: Callable[[Callable, torch.Tensor, int], torch.Tensor], views: int = 1
) -> AbstractContextManager[None]:
    """Patches a model so that its forward returns what ``pick`` makes of hidden states. Logits exist for a few
    positions at a time (`TILE`), never for a whole batch; the backward pass computes them again.

    Args:
        pick: function of the vocabulary head, hidden states ``(n, views, D)`` and the number of their first position;
            returns ``(n, K)``.
        views: number of consecutive rows that are views of one response; the forward returns one row for them.
    """
    head: Any = model.get_output_embeddings()
    inner = head.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        tile = TILE_ON_CPU if hidden.device.type == "cpu" else TILE
        shape, size = (len(hidden) // views, hidden.size(1)), max(tile // views, 1)
        flat = hidden.unflatten(0, (shape[0], views)).transpose(1, 2).flatten(0, 1)
        tiles = [
            checkpoint(partial(pick, inner), part, number * size, use_reentrant=False)
            for number, part in enumerate(flat.split(size))
        ]
        return torch.cat(tiles).unflatten(0, shape)

    return patched(head, forward=forward)


class Body:
    """The part of a causal model, or of its adapter, before the vocabulary head. It runs once, and is read twice."""

    def __init__(self, model: Any):
        self._module = model.get_decoder()
        self._output: Any = None

    def watched(self) -> AbstractContextManager[None]:
        """Patches the model so that a forward keeps its hidden states, with their gradient."""
        inner = self._module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._output = inner(*args, **kwargs)
            return self._output

        return patched(self._module, forward=forward)

    @property
    def states(self) -> torch.Tensor:
        """The kept hidden states, ``(R, T, D)``."""
        return self._output.last_hidden_state

    def replayed(self, states: torch.Tensor) -> AbstractContextManager[None]:
        """Patches the model so that a forward passes these hidden states to its head."""
        output = type(self._output)(**{**self._output, "last_hidden_state": states})
        return patched(self._module, forward=lambda *args, **kwargs: output)


@dataclass(frozen=True)
class Padded:
    """Token ids and attention mask, ``(rows, T)`` int64 each."""

    ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], pad_id: int, side: str, device: torch.device) -> Padded:
        ids, mask = Ragged.of(sequences).padded(pad_id, side)
        return cls(*torch.stack([ids, mask.to(torch.int64)]).to(device))


class ModelScorer:
    """A model with fixed weights at the sampling temperature; `PolicyScorer` is that of a trainer, perhaps sharded.
    Tensors are on its device, and log-probs are float32."""

    def __init__(self, model: PreTrainedModel, temperature: float):
        self._given, self._temperature = model, temperature

    @property
    def _model(self) -> PreTrainedModel:
        """The model that is called."""
        return self._given

    @property
    def _inner(self) -> PreTrainedModel:
        """The same model, without wrappers for several processes."""
        return self._given

    @property
    def device(self) -> torch.device:
        return self._inner.device

    @property
    def vocabulary(self) -> int:
        """The number of logits per position, which may differ from the tokenizer's number of tokens."""
        return self._inner.config.get_text_config().vocab_size

    def _scoring(self) -> AbstractContextManager[Any]:
        """Returns a context that is open around every forward."""
        return torch.no_grad()

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor:
        """Returns log-probs ``(rows, T)`` of the response tokens."""
        ids, mask = torch.cat([prompt.ids, response.ids], dim=1), torch.cat([prompt.mask, response.mask], dim=1)
        with self._scoring():
            output = self._model(input_ids=ids, attention_mask=mask, logits_to_keep=response.ids.size(1) + 1)
        return self._log_probs(output.logits[:, :-1], response.ids)

    def shared(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        """Returns log-probs ``(R, T)`` of the packed labels, 0 where there is none."""
        states, labelled = self.states(rows, before), rows.labels != -100
        with self._scoring():
            logits = self._inner.get_output_embeddings()(states[labelled])
        scores = torch.zeros(rows.labels.shape, device=self.device)
        return scores.masked_scatter(labelled, self._log_probs(logits, rows.labels[labelled]))

    def _log_probs(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        scaled = logits.float() / self._temperature
        return scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)

    def states(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        """Returns the hidden states ``(R, T, D)`` that the vocabulary head reads."""
        self._body = Body(self._inner)
        with self._scoring(), self._body.watched():
            self._forward(rows, before, logits_to_keep=1)
        return self._body.states

    def _forward(self, rows: Packed, before: Before | None, **options: Any) -> Any:
        return self._model(**rows.inputs(attention_of(self._inner), before), **options)

    def shared_with_states(self, rows: Packed, before: Before | None = None) -> torch.Tensor:
        """Returns ``(R, T, 1 + D)`` float32: what `shared` returns and, behind it, what `states` does."""
        self._body = Body(self._inner)
        with self._body.watched():
            scores = self.shared(rows, before)
        return torch.cat([scores.unsqueeze(-1), self._body.states], dim=-1)

    def largest(self, states: torch.Tensor, count: int, mix: Mix | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and float32 values of the ``count`` largest logits, ``(n, T, count)`` each.

        Args:
            states: ``(n, views, T, D)`` of n responses, after a call of `states` or `shared_with_states`.
            mix: mixes the logits of a response's views; needed where there are several.
        """
        (number, views, width, _), found = states.shape, []

        def pick(head: Callable, hidden: torch.Tensor, first: int) -> torch.Tensor:
            logits = head(hidden)
            position = torch.arange(first, first + len(logits), device=logits.device)
            one = logits[:, 0] if mix is None else mix(position // width, logits)
            values, tokens = one.topk(count)
            found.append(tokens)
            return values

        ids = torch.zeros((number * views, width), dtype=torch.int64, device=self.device)
        states = states.flatten(0, 1).to(self._body.states.dtype)
        with self._scoring(), head_in_tiles(self._inner, pick, views), self._body.replayed(states):
            values = self._model(input_ids=ids, use_cache=False).logits
        return torch.cat(found).unflatten(0, (number, width)), values.float()

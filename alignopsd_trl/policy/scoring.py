"""Teacher forcing: log-probs of given responses under given prompts, without gradient.

Requests are (prompt, response) pairs. They are sorted by length and cut into chunks by a budget of padded tokens, so
that little is computed for padding; where several responses are scored under one prompt, the prompt is encoded once
and its cache shared (`score_pairs(shared=True)`). Both paths give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from alignopsd_trl.policy.ragged import Ragged

Agree = Callable[[int], int]


class ScoringModel(Protocol):
    """The policy as scoring sees it. Tensors are on its device; both calls return ``(rows, T)`` float32 log-probs of
    the response tokens at the sampling temperature."""

    device: torch.device

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor: ...

    def shared(self, prompt: Padded, response: Padded, parent: torch.Tensor) -> torch.Tensor:
        """``parent``: ``(rows,)``, the prompt row that each response row is scored under."""

    def largest(self, prompt: Padded, response: Padded, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and float32 values of the ``count`` largest logits, ``(rows, T, count)`` each."""


@dataclass(frozen=True)
class Padded:
    """Token ids and attention mask, ``(rows, T)`` int64 each."""

    ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, sequences: Ragged, rows: torch.Tensor, pad_id: int, side: str, device: torch.device) -> Padded:
        ids, mask = sequences.padded(rows, pad_id, side)
        return cls(ids.to(device), mask.to(device, torch.int64))


def plan_chunks(lengths: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """Cuts rows, longest first, into chunks of at most ``budget`` padded tokens (one row at least).

    Args:
        lengths: ``(n,)`` int64 tokens per row.

    Returns:
        Row numbers per chunk; together a permutation of ``range(n)``. Equal lengths keep their order.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    ordered = lengths[order].tolist()
    chunks, first = [], 0
    while first < len(ordered):
        rows = max(1, budget // max(ordered[first], 1))
        chunks.append(order[first : first + rows])
        first += rows
    return chunks


@torch.no_grad()
def score_pairs(
    model: ScoringModel,
    prompts: Ragged,
    responses: Ragged,
    prompt_rows: torch.Tensor,
    response_rows: torch.Tensor,
    *,
    pad_id: int,
    budget: int,
    shared: bool,
    agree: Agree = lambda number: number,
) -> torch.Tensor:
    """Log-probs of ``responses[response_rows]`` under ``prompts[prompt_rows]``.

    Args:
        prompt_rows, response_rows: ``(P,)`` int64.
        budget: padded tokens per forward.
        shared: encode each prompt of a chunk once. Must be equal on all processes, as must be the calls.
        agree: maximum of a number over all processes; every process runs as many forwards as the busiest one.

    Returns:
        ``(P, T)`` float32 on the model's device, ``T`` the longest response of the whole set, 0 past a response's end.
    """
    width = max(int(responses.length.max()) if len(responses) else 0, 1)
    result = torch.zeros((len(prompt_rows), width), dtype=torch.float32, device=model.device)
    tokens = prompts.length[prompt_rows] + (width if shared else responses.length[response_rows])
    if shared:  # rows of one prompt side by side, so that a chunk holds few prompts
        by_prompt = torch.argsort(prompt_rows, stable=True)
        chunks = [by_prompt[chunk] for chunk in plan_chunks(tokens[by_prompt], budget)]
    else:
        chunks = plan_chunks(tokens, budget)
    missing = agree(len(chunks)) - len(chunks)  # before the forwards, which may gather parameters over processes
    for chunk in chunks:
        prompt, response = prompt_rows[chunk], response_rows[chunk]
        scores = _score_chunk(model, prompts, responses, prompt, response, pad_id, shared)
        result[chunk.to(model.device), : scores.size(1)] = scores
    for _ in range(missing):
        dummy = Ragged.of([[pad_id, pad_id]])
        _score_chunk(
            model, dummy, dummy, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), pad_id, shared
        )
    return result


def _score_chunk(
    model: ScoringModel,
    prompts: Ragged,
    responses: Ragged,
    prompt: torch.Tensor,
    response: torch.Tensor,
    pad_id: int,
    shared: bool,
) -> torch.Tensor:
    answer = Padded.of(responses, response, pad_id, "right", model.device)
    if shared:
        unique, parent = torch.unique(prompt, return_inverse=True)
        context = Padded.of(prompts, unique, pad_id, "left", model.device)
        scores = model.shared(context, answer, parent.to(model.device))
    else:
        scores = model.plain(Padded.of(prompts, prompt, pad_id, "left", model.device), answer)
    return scores.float() * answer.mask


@torch.no_grad()
def largest_logits(
    model: ScoringModel,
    prompts: Ragged,
    responses: Ragged,
    count: int,
    *,
    pad_id: int,
    budget: int,
    agree: Agree = lambda number: number,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's ``count`` largest logits at each position of each response under its own prompt.

    Args:
        budget: padded tokens per forward; the logits of a forward's response tokens are in memory at once.
        agree: maximum of a number over all processes, as in `score_pairs`.

    Returns:
        Token ids int64 and logits float32, ``(n, T, count)`` each, 0 past a response's end.
    """
    width = max(int(responses.length.max()) if len(responses) else 0, 1)
    ids = torch.zeros((len(prompts), width, count), dtype=torch.int64, device=model.device)
    logits = torch.zeros((len(prompts), width, count), dtype=torch.float32, device=model.device)
    chunks = plan_chunks(prompts.length + responses.length, budget)
    missing = agree(len(chunks)) - len(chunks)  # before the forwards, as in `score_pairs`
    for chunk in chunks:
        answer = Padded.of(responses, chunk, pad_id, "right", model.device)
        found, values = model.largest(Padded.of(prompts, chunk, pad_id, "left", model.device), answer, count)
        rows, length, kept = chunk.to(model.device), answer.ids.size(1), answer.mask.unsqueeze(-1)
        ids[rows, :length], logits[rows, :length] = found * kept, values * kept
    dummy = Padded.of(Ragged.of([[pad_id, pad_id]]), torch.zeros(1, dtype=torch.int64), pad_id, "right", model.device)
    for _ in range(missing):
        model.largest(dummy, dummy, count)
    return ids, logits

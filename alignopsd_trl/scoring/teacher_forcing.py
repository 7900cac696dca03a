"""Teacher forcing, without gradient: log-probs of given responses under given prompts, and likeliest tokens along them.

Requests are (prompt, response) pairs. Equal pairs are scored once, and common prefixes, as of the turns of a dialogue,
are encoded once. Rows are sorted by length and cut into chunks by a budget of padded tokens, which saves padding. Where
the model allows it, other responses to a prompt, or to a turn of a dialogue, branch off in the same row (`packing`).
All ways give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

import torch

from alignopsd_trl.scoring.model import Before, Mix, ModelScorer, Padded
from alignopsd_trl.scoring.packing import Packed, Pairs, PairsOfRow, Ragged, TreeRow, rows_of_pairs
from alignopsd_trl.scoring.prefix_cache import PrefixCache

Agree = Callable[[int], int]
States = dict[tuple[bytes, bytes], torch.Tensor]
"""Contents of a prompt and a response -> float32 hidden states ``(T, D)`` at the response."""
KEPT, KEPT_FROM_SCORING = 2, 2**17
"""Tokens whose hidden states `largest_logits` keeps at once, as a multiple of the budget of a forward; and padded
tokens of which `score_pairs` keeps them at most."""


@dataclass(frozen=True)
class Forwards:
    """How pairs become the rows of forwards. Must be equal on all processes, as must be the calls.

    Args:
        budget: padded tokens per forward.
        shared: encode each prompt and each dialogue once, with other responses as branches.
        nested: without ``shared``, encode a pair once that is a prefix of another one. It requires only that the model
            is causal.
        agree: all-reduces the maximum of a number, so that every process runs as many forwards as the busiest one.
        prefixes: a cache of an unsharded model, which keeps all prompts under the scoring weights.
    """

    _: KW_ONLY
    pad_id: int
    budget: int
    shared: bool = False
    nested: bool = False
    agree: Agree = lambda number: number
    prefixes: PrefixCache | None = None


@torch.no_grad()
def score_pairs(
    model: ModelScorer,
    prompts: Ragged,
    responses: Ragged,
    prompt_rows: torch.Tensor,
    response_rows: torch.Tensor,
    forwards: Forwards,
    keep: States | None = None,
) -> torch.Tensor:
    """Scores ``responses[response_rows]`` under ``prompts[prompt_rows]``.

    Args:
        prompt_rows, response_rows: ``(P,)`` int64.
        keep: gets the hidden states, which `largest_logits` then needs not compute again. It gets none without
            `Forwards.shared`, or where a process would hold too many (`KEPT_FROM_SCORING`).

    Returns:
        ``(P, T)`` float32 on the model's device, ``T`` the longest response of the whole set, 0 past a response's end.
    """
    prompt, response, place = _distinct_pairs(prompts, responses, prompt_rows, response_rows)
    pairs = Pairs(prompts, responses, prompt, response)
    width = responses.longest
    keeps = keep is not None and forwards.shared and forwards.agree(len(pairs) * width) <= KEPT_FROM_SCORING
    scores = _read(model, pairs, model.shared_with_states if keeps else None, width, forwards)
    if scores is None:
        return torch.zeros((len(place), width), device=model.device)
    if keep is not None and keeps:
        scores, states = scores[..., 0], scores[..., 1:]
        keep[b"", b""] = states.new_zeros(states.shape[1:])  # a process without pairs has to know the shape
        keep.update((pairs.content(number), one) for number, one in enumerate(states))
    return scores[place.to(model.device)]


Way = Callable[[Packed, Before | None], torch.Tensor]
"""A model's forward of packed rows: a value at each of their columns, ``(R, T, ...)``."""
Rows = list[tuple[list[int], list[tuple[int, int]]]]
"""The pairs of each row of a forward, with the first column and the length of each."""


def _read(model: ModelScorer, pairs: Pairs, way: Way | None, width: int, forwards: Forwards) -> torch.Tensor | None:
    """Returns the values at each pair's response, ``(P, width, ...)``, 0 past its end; `None` without any forward.

    Args:
        way: by default the log-probs, by `ModelScorer.plain` unless rows are `Forwards.shared`.
    """
    result = None
    for values, rows in _forwards(model, pairs, way, forwards):
        if result is None:
            result = values.new_zeros((len(pairs), width, *values.shape[2:]))
        places = [
            (row, pair, first, length)
            for row, (numbers, where) in enumerate(rows)
            for pair, (first, length) in zip(numbers, where, strict=True)
        ]
        row, pair, first, length = torch.tensor(places, dtype=torch.int64).view(-1, 4).T
        token = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
        row, pair, first = (one.repeat_interleave(length) for one in (row, pair, first))
        row, column, pair, token = torch.stack([row, first + token, pair, token]).to(values.device)
        result[pair, token] = values[row, column]
    return result


def _forwards(
    model: ModelScorer, pairs: Pairs, way: Way | None, forwards: Forwards
) -> Iterator[tuple[torch.Tensor, Rows]]:
    """Yields forwards: of whole prompts and responses, or, with `Forwards.prefixes`, of the responses alone, behind the
    cached keys and values of their prompts."""
    cached, pad_id = forwards.prefixes, forwards.pad_id
    if cached is not None:
        rows = pairs.by_prompt()
    elif forwards.shared or forwards.nested:
        rows = [(row.all, pairs.tree_row(row)) for row in rows_of_pairs(pairs, forwards.budget, forwards.shared)]
    else:
        rows = [([pair], pairs.tree_row(PairsOfRow([pair]))) for pair in range(len(pairs))]
    starts = [0 if cached is None else len(tree_row.path) - 1 for _, tree_row in rows]
    sizes = [
        len(tree_row) + 1 if cached is None else max(len(tree_row) - start, len(tree_row) // 4)  # it takes memory too
        for (_, tree_row), start in zip(rows, starts, strict=True)
    ]
    where = [
        (numbers, [(column - start, length) for column, length in tree_row.places()])
        for (numbers, tree_row), start in zip(rows, starts, strict=True)
    ]
    for chunk in _chunks(sizes, forwards):
        if cached is not None and not any(length for number in chunk for _, length in where[number][1]):
            chunk = []
        chosen = [rows[number][1] for number in chunk] or [TreeRow([pad_id] * 4, [(2, 2)])]  # others may have more
        if way is None and cached is None and not forwards.shared:
            values = _score_plain(model, chosen, pad_id)
        else:
            packed = Packed.of(chosen, pad_id, paths=cached is None or not chunk).to(model.device)
            paths = [tree_row.path[:-1] for tree_row in chosen]
            before = partial(cached.cache, paths, packed.ids.size(1)) if cached is not None and chunk else None
            values = (way or model.shared)(packed, before)
        yield values, [where[number] for number in chunk]


def _chunks(lengths: list[int], forwards: Forwards) -> list[list[int]]:
    """Returns the rows of each forward, as many forwards as the busiest process has; some are without rows."""
    chunks = [chunk.tolist() for chunk in plan_chunks(torch.tensor(lengths, dtype=torch.int64), forwards.budget)]
    return chunks + [[]] * (forwards.agree(len(chunks)) - len(chunks))  # known first: forwards may gather parameters


def plan_chunks(lengths: torch.Tensor, budget: int) -> list[torch.Tensor]:
    """Cuts rows, longest first, into chunks of at most ``budget`` padded tokens (one row at least). Returns the row
    numbers of each chunk, together a permutation of ``range(n)``, in which equal lengths keep their order.

    Args:
        lengths: ``(n,)`` int64 tokens per row.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    ordered = lengths[order].tolist()
    chunks, first = [], 0
    while first < len(ordered):
        rows = max(1, budget // max(ordered[first], 1))
        chunks.append(order[first : first + rows])
        first += rows
    return chunks


def _distinct_pairs(
    prompts: Ragged, responses: Ragged, prompt_rows: torch.Tensor, response_rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns prompt and response rows of distinct pairs, ``(u,)`` each, and each pair's distinct one, ``(P,)``."""
    first_prompt, prompt_of = prompts.distinct()
    first_response, response_of = responses.distinct()
    both = torch.stack([prompt_of[prompt_rows], response_of[response_rows]], dim=1)
    unique, place = both.unique(dim=0, return_inverse=True) if len(both) else (both, prompt_rows)
    return first_prompt[unique[:, 0]], first_response[unique[:, 1]], place


def _score_plain(model: ModelScorer, tree_rows: list[TreeRow], pad_id: int) -> torch.Tensor:
    """Scores rows without branches by TRL's own forward, with the same result as `ModelScorer.shared`."""
    first = [tree_row.spans[0][0] for tree_row in tree_rows]
    prompts = [tree_row.path[:start] for tree_row, start in zip(tree_rows, first, strict=True)]
    answers = [tree_row.path[start:] for tree_row, start in zip(tree_rows, first, strict=True)]
    answer = Padded.of(answers, pad_id, "right", model.device)
    scores = model.plain(Padded.of(prompts, pad_id, "left", model.device), answer)
    result = torch.zeros((len(tree_rows), max(map(len, tree_rows))), dtype=torch.float32, device=model.device)
    for row, start in enumerate(first):
        length = len(tree_rows[row]) + 1 - start
        result[row, start - 1 : start - 1 + length] = scores[row, :length]
    return result


@torch.no_grad()
def largest_logits(
    model: ModelScorer,
    prompts: Ragged,
    responses: Ragged,
    count: int,
    forwards: Forwards,
    *,
    sources: torch.Tensor | None = None,
    mix: Mix | None = None,
    among: torch.Tensor | None = None,
    known: States | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's ``count`` largest logits at each position of each response under its own prompt; with
    ``sources``, of a mixture of its logits under several prompts.

    The responses are encoded as in `score_pairs`, `KEPT` times the budget of their tokens at a time. The vocabulary
    head then reads the hidden states of all views of a response together.

    Args:
        sources: ``(n, K)`` int64 prompts beside a response's own, padded with -1; equal K on all processes.
        mix: mixes the logits of each response's views; needed with ``sources``.
        among: ``(n,)`` bool, the responses to score; all by default.
        known: hidden states that `score_pairs` kept under the same weights; no forward computes them again.

    Returns:
        Token ids int64 and logits float32, ``(n, T, count)`` each, 0 past a response's end and outside ``among``.
    """
    own = torch.arange(len(prompts))[:, None]
    views = own if sources is None else torch.cat([own, sources.cpu()], dim=1)
    wanted = own[:, 0] if among is None else among.cpu().nonzero().squeeze(1)
    shape = (len(prompts), responses.longest, count)
    ids = torch.zeros(shape, dtype=torch.int64, device=model.device)
    logits = torch.zeros(shape, dtype=torch.float32, device=model.device)
    tokens = (responses.length * (views >= 0).sum(1))[wanted].cumsum(0) // (KEPT * forwards.budget)
    parts = list(wanted.split(tokens.unique_consecutive(return_counts=True)[1].tolist()))
    parts += [wanted[:0]] * (forwards.agree(len(parts)) - len(parts))  # known first, as in `_chunks`
    for part in parts:
        row, slot = (views[part] >= 0).nonzero(as_tuple=True)
        prompt, response, place = _distinct_pairs(prompts, responses, views[part][row, slot], part[row])
        width = max(responses.length[part].tolist(), default=1)
        states = _states(model, Pairs(prompts, responses, prompt, response), width, known or {}, forwards)
        numbers = row.bincount(minlength=len(part))  # of views
        for number in range(1, views.size(1) + 1):
            rows, at = part[numbers == number], place[(numbers == number)[row]].view(-1, number)
            if forwards.agree(len(rows)) and states is not None:
                found, values = _largest(model, states, at, rows, count, mix)
                kept = torch.arange(width) < responses.length[rows, None]
                kept, rows = kept.unsqueeze(-1).to(model.device), rows.to(model.device)
                ids[rows, :width], logits[rows, :width] = found * kept, values * kept
    return ids, logits


def _largest(
    model: ModelScorer, states: torch.Tensor, at: torch.Tensor, rows: torch.Tensor, count: int, mix: Mix | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and logits ``(n, T, count)`` of n responses. Without any it calls the model all the same.

    Args:
        states: ``(P, T, D)`` of pairs.
        at: ``(n, views)`` the pairs of each response.
        rows: ``(n,)`` the responses, for ``mix``.
    """
    if not len(rows):
        blank = states.new_zeros((1, at.size(1), *states.shape[1:]))
        return tuple(one[:0] for one in model.largest(blank, count, lambda rows, logits: logits[:, 0]))  # type: ignore
    place = rows.to(states.device)
    return model.largest(states[at.to(states.device)], count, mix and (lambda row, logits: mix(place[row], logits)))


def _states(model: ModelScorer, pairs: Pairs, width: int, known: States, forwards: Forwards) -> torch.Tensor | None:
    """Returns hidden states ``(P, width, D)``, 0 past a response's end; `None` where no process has any."""
    contents = [pairs.content(number) for number in range(len(pairs))]
    new = torch.tensor([place for place, one in enumerate(contents) if one not in known], dtype=torch.int64)
    found = _read(model, pairs.among(new), model.states, width, forwards)
    if not known:
        return found
    result = known[b"", b""].new_zeros((len(pairs), width, known[b"", b""].size(1)))
    if found is not None:
        result[new.to(result.device)] = found.to(result.dtype)
    for place, one in enumerate(contents):
        if one in known:
            result[place, : len(known[one])] = known[one][:width]
    return result

"""Teacher forcing: log-probs of given responses under given prompts, without gradient.

Requests are (prompt, response) pairs. Equal pairs are scored once, and common prefixes, as of the turns of a dialogue,
are encoded once. Rows are sorted by length and cut into chunks by a budget of padded tokens, which saves padding. Where
the model allows it, other responses to a prompt, or to a turn of a dialogue, branch off in the same row (`packing`).
All ways give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from transformers import Cache

from alignopsd_trl.scoring.packing import Packed, Pairs, PairsOfRow, TreeRow, rows_of_pairs
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.ragged import Ragged, plan_chunks

Agree = Callable[[int], int]
Mix = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Row numbers ``(n,)`` and the logits ``(n, views, V)`` of a response's views -> their mixture ``(n, V)``."""


class ScoringModel(Protocol):
    """The interface of the policy for scoring. Tensors are on its device. `plain` and `shared` return ``(rows, T)``
    float32 log-probs at the sampling temperature: of the response tokens, and of the packed labels."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocabulary(self) -> int:
        """The number of logits per position, which may differ from the tokenizer's number of tokens."""

    def plain(self, prompt: Padded, response: Padded) -> torch.Tensor: ...

    def shared(self, rows: Packed, before: Cache | None = None) -> torch.Tensor:
        """Returns ``(R, T)``, 0 where there is no label.

        Args:
            before: the cache of the paths, which the rows then do not contain.
        """

    def largest(
        self, prompt: Padded, response: Padded, count: int, views: int = 1, mix: Mix | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and float32 values of the ``count`` largest logits, ``(rows / views, T, count)`` each. Every
        ``views`` consecutive rows belong to one response; ``mix`` mixes their logits."""


@dataclass(frozen=True)
class Padded:
    """Token ids and attention mask, ``(rows, T)`` int64 each."""

    ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, sequences: Ragged, rows: torch.Tensor, pad_id: int, side: str, device: torch.device) -> Padded:
        ids, mask = sequences.padded(rows, pad_id, side)
        return cls(*torch.stack([ids, mask.to(torch.int64)]).to(device))


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
    nested: bool = False,
    agree: Agree = lambda number: number,
    prefixes: PrefixCache | None = None,
) -> torch.Tensor:
    """Scores ``responses[response_rows]`` under ``prompts[prompt_rows]``.

    Args:
        prompt_rows, response_rows: ``(P,)`` int64.
        budget: padded tokens per forward.
        shared: encode each prompt and each dialogue once, with other responses as branches. Must be equal on all
            processes, as must be the calls.
        nested: without ``shared``, encode a pair once that is a prefix of another one. It requires only that the model
            is causal.
        agree: all-reduces the maximum of a number, so that every process runs as many forwards as the busiest one.
        prefixes: the prompt cache of an unsharded model, used if it holds all prompts on every process.

    Returns:
        ``(P, T)`` float32 on the model's device, ``T`` the longest response of the whole set, 0 past a response's end.
    """
    prompt, response, place = _distinct_pairs(prompts, responses, prompt_rows, response_rows)
    pairs = Pairs(prompts, responses, prompt, response)
    if prefixes is not None and _known_everywhere(prefixes, prompts, prompt, agree):
        return _score_behind(model, pairs, prefixes, pad_id, budget, _longest(responses))[place.to(model.device)]
    alone = [PairsOfRow([pair]) for pair in range(len(pairs))]
    rows = rows_of_pairs(pairs, budget, branch=shared) if shared or nested else alone
    tree_rows = [pairs.tree_row(row) for row in rows]
    chunks = plan_chunks(torch.tensor([len(tree_row) + 1 for tree_row in tree_rows], dtype=torch.int64), budget)
    missing = agree(len(chunks)) - len(chunks)  # before the forwards, which may gather parameters over processes
    score = _score_packed if shared else _score_plain
    result = torch.zeros((len(prompt), _longest(responses)), dtype=torch.float32, device=model.device)
    for chunk in chunks:
        chosen = chunk.tolist()
        scores = score(model, [tree_rows[number] for number in chosen], pad_id)
        _take(scores, [(rows[number].all, tree_rows[number].places()) for number in chosen], result)
    for _ in range(missing):
        score(model, [TreeRow([pad_id] * 4, [(2, 2)])], pad_id)
    return result[place.to(model.device)]


def _known_everywhere(prefixes: PrefixCache, prompts: Ragged, rows: torch.Tensor, agree: Agree) -> bool:
    """Whether every process has all its prompts in its cache: all must choose alike, as scoring runs collectives."""
    here = prefixes.knows([prompts.row(row)[:-1] for row in rows.unique().tolist()])
    return agree(int(not here)) == 0


def _score_behind(
    model: ScoringModel, pairs: Pairs, prefixes: PrefixCache, pad_id: int, budget: int, width: int
) -> torch.Tensor:
    """Returns scores ``(pairs, width)`` from the prompts' cached keys and values: the model gets responses only."""
    rows = pairs.by_prompt()
    tree_rows = [pairs.behind(row) for row in rows]
    path = torch.tensor([len(tree_row.path) - 1 for tree_row in tree_rows], dtype=torch.int64)
    whole = torch.tensor([len(tree_row) for tree_row in tree_rows], dtype=torch.int64)
    result = torch.zeros((len(pairs), width), dtype=torch.float32, device=model.device)
    for chunk in plan_chunks(torch.maximum(whole - path, whole // 4), budget):  # cached tokens take memory too
        chosen = [tree_rows[number] for number in chunk.tolist()]
        packed = Packed.of(chosen, pad_id, paths=False)
        if not packed.ids.size(1):
            continue
        cache = prefixes.cache([tree_row.path[:-1] for tree_row in chosen], packed.ids.size(1))
        scores = model.shared(packed.to(model.device), before=cache).float()
        starts = path[chunk].tolist()
        places = [
            [(first - start, length) for first, length in tree_row.places()]
            for tree_row, start in zip(chosen, starts, strict=True)
        ]
        _take(scores, list(zip([rows[number] for number in chunk.tolist()], places, strict=True)), result)
    return result


def _take(scores: torch.Tensor, rows: list[tuple[list[int], list[tuple[int, int]]]], result: torch.Tensor) -> None:
    """Copies the scores ``(R, T)`` of each row's pairs, given by first column and length, into ``result``."""
    places = [
        (row, pair, first, length)
        for row, (pairs, where) in enumerate(rows)
        for pair, (first, length) in zip(pairs, where, strict=True)
    ]
    row, pair, first, length = torch.tensor(places, dtype=torch.int64).T
    token = torch.arange(int(length.sum())) - (length.cumsum(0) - length).repeat_interleave(length)
    row, pair, first = (one.repeat_interleave(length) for one in (row, pair, first))
    row, column, pair, token = torch.stack([row, first + token, pair, token]).to(scores.device)
    result[pair, token] = scores[row, column]


def _longest(sequences: Ragged) -> int:
    return max(int(sequences.length.max()) if len(sequences) else 0, 1)


def _distinct_pairs(
    prompts: Ragged, responses: Ragged, prompt_rows: torch.Tensor, response_rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns prompt and response rows of distinct pairs, ``(u,)`` each, and each pair's distinct one, ``(P,)``."""
    first_prompt, prompt_of = prompts.distinct()
    first_response, response_of = responses.distinct()
    both = torch.stack([prompt_of[prompt_rows], response_of[response_rows]], dim=1)
    unique, place = both.unique(dim=0, return_inverse=True) if len(both) else (both, prompt_rows)
    return first_prompt[unique[:, 0]], first_response[unique[:, 1]], place


def _score_packed(model: ScoringModel, tree_rows: list[TreeRow], pad_id: int) -> torch.Tensor:
    """Scores rows by the packed forward: ``(R, T)`` float32, a score at each label's column."""
    return model.shared(Packed.of(tree_rows, pad_id).to(model.device)).float()


def _score_plain(model: ScoringModel, tree_rows: list[TreeRow], pad_id: int) -> torch.Tensor:
    """Scores rows without branches by TRL's own forward, with the same result as `_score_packed`."""
    first = [tree_row.spans[0][0] for tree_row in tree_rows]
    prompts = Ragged.of([tree_row.path[:start] for tree_row, start in zip(tree_rows, first, strict=True)])
    answers = Ragged.of([tree_row.path[start:] for tree_row, start in zip(tree_rows, first, strict=True)])
    rows = torch.arange(len(tree_rows))
    answer = Padded.of(answers, rows, pad_id, "right", model.device)
    scores = model.plain(Padded.of(prompts, rows, pad_id, "left", model.device), answer)
    result = torch.zeros((len(tree_rows), max(map(len, tree_rows))), dtype=torch.float32, device=model.device)
    for row, start in enumerate(first):
        length = len(tree_rows[row]) + 1 - start
        result[row, start - 1 : start - 1 + length] = scores[row, :length]
    return result


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
    sources: torch.Tensor | None = None,
    mix: Mix | None = None,
    among: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the model's ``count`` largest logits at each position of each response under its own prompt; with
    ``sources``, of a mixture of its logits under several prompts.

    Args:
        budget: padded tokens per forward; the views of a response are scored in one.
        agree: as in `score_pairs`.
        sources: ``(n, K)`` int64 prompts beside a response's own, padded with -1; equal K on all processes.
        mix: mixes the logits of each response's views; needed with ``sources``.
        among: ``(n,)`` bool, the responses to score; all by default.

    Returns:
        Token ids int64 and logits float32, ``(n, T, count)`` each, 0 past a response's end and outside ``among``.
    """
    wanted = torch.ones(len(prompts), dtype=torch.bool) if among is None else among.cpu()
    width, own = _longest(responses), torch.arange(len(prompts))[:, None]
    views = own if sources is None else torch.cat([own, sources.cpu()], dim=1)
    ids = torch.zeros((len(prompts), width, count), dtype=torch.int64, device=model.device)
    logits = torch.zeros((len(prompts), width, count), dtype=torch.float32, device=model.device)
    for number in range(1, views.size(1) + 1):
        rows = (wanted & ((views >= 0).sum(1) == number)).nonzero().squeeze(1)
        longest = prompts.length[views[rows, :number]].amax(1) + responses.length[rows]
        chunks = [rows[chunk] for chunk in plan_chunks(number * longest, budget)]
        missing = agree(len(chunks)) - len(chunks)  # before the forwards, as in `score_pairs`
        for chunk in chunks:
            prompt = Padded.of(prompts, views[chunk, :number].flatten(), pad_id, "left", model.device)
            answer = Padded.of(responses, chunk.repeat_interleave(number), pad_id, "right", model.device)
            chosen = chunk.to(model.device)
            found, values = model.largest(prompt, answer, count, number, mix and partial(_of_rows, mix, chosen))
            length, kept = answer.ids.size(1), answer.mask[::number].unsqueeze(-1)
            ids[chosen, :length], logits[chosen, :length] = found * kept, values * kept
        filler = torch.zeros(number, dtype=torch.int64)
        dummy = Padded.of(Ragged.of([[pad_id, pad_id]]), filler, pad_id, "right", model.device)
        for _ in range(missing):
            model.largest(dummy, dummy, count, number, lambda rows, logits: logits[:, 0])
    return ids, logits


def _of_rows(mix: Mix, chosen: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return mix(chosen[rows], logits)

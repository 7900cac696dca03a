"""Chooses the turns at which the privileged view thinks: those whose credit can move, and more if spans need them.

    groups with an advantage ──► thoughts ──► shifts ──► spans settled? ─► a quarter of the others ──► shifts ──► ...

Matches, profiles and shifts stay within a task's group, and the credit of a rollout without any advantage is multiplied
by 0. All that others need of a group without any are its shifts, for the batch threshold: a quantile, but a clipped
one, so that a part of the shifts says between which bounds it lies (`spans.threshold_bounds`). Where every threshold
between them gives the rollouts that have an advantage the same spans, the other groups are left out; these rollouts'
spans, weights and advantages are those of thinking about all turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.correspondence import TaskSimilarity, correspond
from alignopsd_trl.methods.align_opsd.spans import (
    correspondence_shifts,
    possible_shifts,
    profile_columns,
    threshold_bounds,
    unsettled,
)
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions

PORTIONS = 4  # asking all at once costs up to a fifth of a round more (docs/performance.md)


@dataclass(frozen=True)
class Thinking:
    """Thoughts of the privileged view at M turns.

    Args:
        thoughts: M, blank where it was not asked.
        asked: ``(M,)`` bool, whole tasks.
        encode: n texts -> ``(n, D)``, with the embeddings that are known already.
        tasks: H of those tasks that were asked about for their shifts alone, and so without actions.
        bounds: of the threshold, where the spans were clear before all turns were thought about.
    """

    thoughts: list[Thought]
    asked: torch.Tensor
    encode: Callable[[Sequence[str]], torch.Tensor]
    tasks: list[TaskSimilarity] = field(default_factory=list)
    bounds: tuple[float, float] | None = None


@torch.no_grad()
def think_where_credit_moves(batch: TurnBatch, teacher: Teacher) -> Thinking:
    """Asks about the groups of scored turns, or about all turns if the batch does not say which are scored."""
    every = torch.ones_like(batch.task, dtype=torch.bool)
    if batch.scored is None:
        return Thinking(teacher.thoughts(batch), every, teacher.encode)
    nothing = Thinking([NO_THOUGHT] * len(batch), ~every, Embeddings(teacher))
    return _ask(batch, teacher, nothing, [rows for rows in batch.groups.by_task if batch.scored[rows].any()])


@torch.no_grad()
def think_until_clear(
    batch: TurnBatch,
    teacher: Teacher,
    thinking: Thinking,
    tasks: Sequence[TaskSimilarity],
    options: AlignOPSDOptions,
) -> Thinking:
    """Asks about the groups without an advantage, a portion at a time, until bounds on the threshold settle the spans.

    Every process makes the same calls. Decisions rest on sums over all processes, and a process without groups left
    asks about no turns.

    Args:
        batch: with ``scored``.
        teacher: who thinks, encodes and gathers.
        thinking: of `think_where_credit_moves`.
        tasks: H of its tasks.
        options: for gamma_H, the profiles and the threshold.
    """
    groups, gather = batch.groups, teacher.gather
    columns = profile_columns(groups, options, gather)
    possible = possible_shifts(groups, [turn.thought for turn in batch.turns])
    scored = [rows for rows in groups.by_rollout if batch.scored is None or batch.scored[rows].any()]
    shifts = new = correspondence_shifts(tasks, groups, options, columns)
    known = torch.zeros(0, dtype=torch.float64, device=batch.task.device)
    for portion in _portions([rows for rows in groups.by_task if not thinking.asked[rows[0]]]):
        missing = _total(possible & ~thinking.asked, gather)
        if not missing:
            break
        known = torch.cat([known, gather(new.value[new.counts])])
        bounds = threshold_bounds(known, missing, options.boundary_quantile, options.boundary_min, options.boundary_max)
        if not _total(unsettled(shifts, scored, options, bounds), gather):
            return replace(thinking, bounds=bounds)
        thinking = _ask(batch, teacher, thinking, portion, actions=False)
        found = _similarities(batch, thinking, portion, options)
        thinking = replace(thinking, tasks=[*thinking.tasks, *found])
        new = correspondence_shifts(found, groups, options, columns)
    return thinking


def _portions(tasks: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """`PORTIONS` parts of this process's tasks, in order; the last ones may be empty."""
    size = math.ceil(len(tasks) / PORTIONS)
    return [tasks[size * number : size * (number + 1)] for number in range(PORTIONS)]


def _total(chosen: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Counts the chosen ones over all processes."""
    return int(gather(chosen.sum(dtype=torch.float64)[None]).sum())


def _ask(
    batch: TurnBatch, teacher: Teacher, thinking: Thinking, tasks: Sequence[torch.Tensor], actions: bool = True
) -> Thinking:
    """Adds the thoughts of these tasks' turns."""
    new, thoughts = _among(thinking.asked, tasks), list(thinking.thoughts)
    places = new.nonzero().squeeze(1)
    for row, thought in zip(places.tolist(), teacher.thoughts(batch, places, actions), strict=True):
        thoughts[row] = thought
    return replace(thinking, thoughts=thoughts, asked=thinking.asked | new)


def _similarities(
    batch: TurnBatch, thinking: Thinking, tasks: Sequence[torch.Tensor], options: AlignOPSDOptions
) -> list[TaskSimilarity]:
    """H of these tasks."""
    chosen, ours = _among(thinking.asked, tasks), [turn.thought for turn in batch.turns]
    return correspond(thinking.thoughts, ours, thinking.encode, batch.groups, chosen, options, match=False).tasks


def _among(turns: torch.Tensor, tasks: Sequence[torch.Tensor]) -> torch.Tensor:
    """``(M,)`` bool, as ``turns``: which are of these tasks."""
    chosen = torch.zeros_like(turns)
    for rows in tasks:
        chosen[rows] = True
    return chosen


class Embeddings:
    """Embeddings by the teacher's encoder, which encodes each text once.

    Args:
        teacher: who encodes; every process must ask equally often.
    """

    def __init__(self, teacher: Teacher):
        self._teacher, self._vectors = teacher, {}

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        new = [text for text in texts if text not in self._vectors]
        if new or not texts:
            vectors = self._teacher.encode(new)
            self._vectors |= zip(new, vectors, strict=True)
        return torch.stack([self._vectors[text] for text in texts]) if texts else vectors

"""Where the privileged view thinks: at turns whose credit can move, and at as many more as spans need.

    groups with an advantage ──► thoughts ──► shifts ──► spans clear? ─► thoughts of some more groups ──► shifts ──► ...

Matches, profiles and shifts stay within a task's group, and the credit of a rollout without any advantage is multiplied
by 0. All that others need of a group without any are its shifts, for the batch threshold: a quantile, but a clipped
one, so that a part of the shifts says between which bounds it lies (`spans.threshold_bounds`). Where every threshold
between them gives the rollouts that have an advantage the same spans, the other groups are left out; these rollouts'
spans, weights and advantages are those of thinking about all turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.correspondence import TaskSimilarity, correspond
from alignopsd_trl.methods.align_opsd.spans import (
    correspondence_shifts,
    open_questions,
    possible_shifts,
    profile_columns,
    share_to_settle,
    threshold_bounds,
)
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions

ESTIMATES = 2  # times that a share of what is left is tried, before all of it


@dataclass(frozen=True)
class Thinking:
    """What the privileged view thinks at M turns.

    Args:
        thoughts (`list[Thought]`):
            M, blank where it was not asked.
        asked (`torch.Tensor`):
            ``(M,)`` bool, whole tasks.
        encode (`Callable`):
            n texts -> ``(n, D)``, with the embeddings that are known already.
        tasks (`list[TaskSimilarity]`):
            H of those tasks that were asked about for their shifts alone, and so without actions.
        bounds (`tuple[float, float]`, *optional*):
            Of the threshold, where the spans were clear before all turns were thought about.
    """

    thoughts: list[Thought]
    asked: torch.Tensor
    encode: Callable[[Sequence[str]], torch.Tensor]
    tasks: list[TaskSimilarity] = field(default_factory=list)
    bounds: tuple[float, float] | None = None


@torch.no_grad()
def think_where_credit_moves(batch: TurnBatch, teacher: Teacher) -> Thinking:
    """Asks about the groups of scored turns: about all turns, where nothing says which are to be scored."""
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
    """Asks about further groups until the spans of the first ones are clear or no group is left.

    How often the teacher is asked follows from sums over all processes: every process asks equally often, about no
    turns where it has none left. In a round, each takes the same share of its own groups.

    Args:
        batch: with ``scored``.
        teacher: who thinks, encodes and gathers.
        thinking: of `think_where_credit_moves`.
        tasks: H of its tasks.
        options: for gamma_H, the profiles and the threshold.
    """
    groups, gather = batch.groups, teacher.gather
    columns = profile_columns(groups, options, gather)
    neighbours = Neighbours(batch)
    moved = [rows for rows in groups.by_rollout if batch.scored[rows].any()]
    own = new = correspondence_shifts(tasks, groups, options, columns)
    known = torch.zeros(0, dtype=torch.float64, device=batch.task.device)
    for estimate in [True] * ESTIMATES + [False]:
        left = [rows for rows in groups.by_task if not thinking.asked[rows[0]]]
        every, missing = neighbours.everywhere(gather, groups.by_task, left)
        if not missing:
            break
        known = torch.cat([known, gather(new.value[new.counts])])
        bounds = threshold_bounds(known, missing, options.boundary_quantile, options.boundary_min, options.boundary_max)
        points = gather(open_questions(own, moved, options, bounds))
        if not len(points):
            return replace(thinking, bounds=bounds)
        share = share_to_settle(known, every - missing, missing, options.boundary_quantile, points)
        further = neighbours.first(left, share if estimate else 1.0)
        thinking = _ask(batch, teacher, thinking, further, actions=False)
        found = _similarities(batch, thinking, further, options)
        thinking = replace(thinking, tasks=[*thinking.tasks, *found])
        new = correspondence_shifts(found, groups, options, columns)
    return thinking


def _ask(
    batch: TurnBatch, teacher: Teacher, thinking: Thinking, tasks: Sequence[torch.Tensor], actions: bool = True
) -> Thinking:
    """With the thoughts of these tasks' turns."""
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


class Neighbours:
    """How many divergences may come of tasks: of turns with one before them, where the policy thinks at both."""

    def __init__(self, batch: TurnBatch):
        self._possible = possible_shifts(batch.groups, [turn.thought for turn in batch.turns])

    def of(self, rows: torch.Tensor) -> int:
        """Of one task."""
        return int(self._possible[rows].sum())

    def first(self, left: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
        """The fewest of these tasks, in order, that have such a share of this process's neighbours among them."""
        counts = [self.of(rows) for rows in left]
        before = [sum(counts[:place]) for place in range(len(left))]
        return [rows for rows, count in zip(left, before, strict=True) if count < share * sum(counts)]

    def everywhere(self, gather: Callable[[torch.Tensor], torch.Tensor], *parts: Sequence[torch.Tensor]) -> list[int]:
        """Of lists of tasks, over all processes."""
        own = [sum(map(self.of, tasks)) for tasks in parts]
        counts = torch.tensor(own, dtype=torch.float64, device=self._possible.device)
        return gather(counts).view(-1, len(parts)).sum(0).long().tolist()


class Embeddings:
    """The teacher's encoder, asked about each text once.

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

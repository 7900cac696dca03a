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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.correspondence import correspond
from alignopsd_trl.methods.align_opsd.spans import (
    Shifts,
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
        bounds (`tuple[float, float]`, *optional*):
            Of the threshold, where the spans were clear before all turns were thought about.
    """

    thoughts: list[Thought]
    asked: torch.Tensor
    encode: Callable[[Sequence[str]], torch.Tensor]
    bounds: tuple[float, float] | None = None


@torch.no_grad()
def think_where_needed(batch: TurnBatch, teacher: Teacher, options: AlignOPSDOptions) -> Thinking:
    """Asks about the groups of scored turns, then about further ones until the spans are clear or none is left.

    How often the teacher is asked follows from sums over all processes: every process asks equally often, about no
    turns where it has none left. In a round, each takes the same share of its own groups.

    Args:
        batch: with ``scored``.
        teacher: who thinks, encodes and gathers.
        options: for gamma_H, the profiles and the threshold; without a threshold no further group is asked about.
    """
    inquiry = _Inquiry(batch, teacher, options)
    live = inquiry.ask([rows for rows in batch.groups.by_task if batch.scored[rows].any()])
    bounds = inquiry.settle(live) if options.allocation == "span" else None
    return Thinking(inquiry.thoughts, inquiry.asked, inquiry.encode, bounds)


class _Inquiry:
    """Asks the teacher about groups of turns, and keeps its answers."""

    def __init__(self, batch: TurnBatch, teacher: Teacher, options: AlignOPSDOptions):
        self._batch, self._groups, self._teacher, self._options = batch, batch.groups, teacher, options
        self._vectors: dict[str, torch.Tensor] = {}
        self.thoughts = [NO_THOUGHT] * len(batch)
        self.asked = torch.zeros(len(batch), dtype=torch.bool, device=batch.task.device)
        self._possible = possible_shifts(self._groups, [turn.thought for turn in batch.turns])

    def ask(self, tasks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Thoughts of these tasks' turns; which turns these are, ``(M,)`` bool."""
        new = torch.zeros_like(self.asked)
        for rows in tasks:
            new[rows] = True
        places = new.nonzero().squeeze(1)
        for row, thought in zip(places.tolist(), self._teacher.thoughts(self._batch, places), strict=True):
            self.thoughts[row] = thought
        self.asked |= new
        return new

    def settle(self, new: torch.Tensor) -> tuple[float, float] | None:
        """Goes on asking until the spans are clear; the bounds of the threshold, `None` if that took all turns.

        Args:
            new: ``(M,)`` bool, the turns that were asked about so far: those of all groups with an advantage.
        """
        options, gather = self._options, self._teacher.gather
        columns = profile_columns(self._groups, options, gather)
        moved = [rows for rows in self._groups.by_rollout if self._batch.scored[rows].any()]
        theirs, known = None, torch.zeros(0, dtype=torch.float64, device=new.device)
        for estimate in [True] * ESTIMATES + [False]:
            left = [rows for rows in self._groups.by_task if not self.asked[rows[0]]]
            every, missing = self._everywhere(self._groups.by_task, left)
            if not missing:
                break
            found = self._shifts(new, columns)
            theirs = theirs or found  # all rollouts of which the spans matter are among the first
            known = torch.cat([known, gather(found.value[found.counts])])
            bounds = threshold_bounds(
                known, missing, options.boundary_quantile, options.boundary_min, options.boundary_max
            )
            points = gather(open_questions(theirs, moved, options, bounds))
            if not len(points):
                return bounds
            share = share_to_settle(known, every - missing, missing, options.boundary_quantile, points)
            new = self.ask(self._first(left, share if estimate else 1.0))
        return None

    def _shifts(self, new: torch.Tensor, columns: int | None) -> Shifts:
        """The divergences of these turns."""
        ours = [turn.thought for turn in self._batch.turns]
        matches = correspond(self.thoughts, ours, self.encode, self._groups, new, self._options, match=False)
        return correspondence_shifts(matches.tasks, self._groups, self._options, columns)

    def _first(self, left: Sequence[torch.Tensor], share: float) -> list[torch.Tensor]:
        """The fewest of these tasks, in order, that have such a share of this process's neighbours among them."""
        neighbours = [self._neighbours(rows) for rows in left]
        before = [sum(neighbours[:place]) for place in range(len(left))]
        return [rows for rows, count in zip(left, before, strict=True) if count < share * sum(neighbours)]

    def _neighbours(self, rows: torch.Tensor) -> int:
        """As many divergences may come of a task."""
        return int(self._possible[rows].sum())

    def _everywhere(self, *parts: Sequence[torch.Tensor]) -> list[int]:
        """Neighbours in lists of tasks, over all processes."""
        own = [sum(map(self._neighbours, tasks)) for tasks in parts]
        counts = torch.tensor(own, dtype=torch.float64, device=self.asked.device)
        return self._teacher.gather(counts).view(-1, len(parts)).sum(0).long().tolist()

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        new = [text for text in texts if text not in self._vectors]
        if new or not texts:
            vectors = self._teacher.encode(new)
            self._vectors |= zip(new, vectors, strict=True)
        return torch.stack([self._vectors[text] for text in texts]) if texts else vectors

"""Generates reasoning traces of the privileged view and compares them with the policy's.

`match_scored` does this for the groups with an advantage. Matches, profiles and shifts stay within a task's group, and
the advantage 0 of another group multiplies whatever credit its turns get. `match_rest` adds these groups where the
batch threshold of the spans depends on them (`spans.decision_spans`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.correspondence import Correspondence, correspond
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.turns import NO_THOUGHT, Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions


def match_scored(batch: TurnBatch, teacher: Teacher, options: AlignOPSDOptions, match: bool) -> Correspondence:
    """Compares the groups that have a scored turn; all groups if `TurnBatch.scored` is `None`, or where a distribution
    mixes the views of all turns.

    Args:
        batch: the M turns.
        teacher: generates and encodes.
        options, match: of `correspond`.
    """
    every = torch.ones_like(batch.task, dtype=torch.bool)
    if batch.scored is None:
        return correspond(teacher.thoughts(batch), every, batch, teacher.encode, options, match)
    mixed = match and options.auxiliary_loss == "distribution"
    compared = every if mixed else torch.isin(batch.task, batch.task[batch.scored])
    return correspond(_thoughts(batch, teacher, compared), compared, batch, teacher.encode, options, match)


def match_rest(
    batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions
) -> Correspondence:
    """Adds H of all other groups. No action is generated for them, and their turns get no sources."""
    rest = ~matches.compared
    thoughts = _thoughts(batch, teacher, rest, actions=False)
    found = correspond(thoughts, rest, batch, teacher.encode, options, match=False)
    pairs = zip(matches.thoughts, thoughts, matches.compared.tolist(), strict=True)
    thoughts = [first if compared else later for first, later, compared in pairs]
    return replace(matches, thoughts=thoughts, compared=matches.compared | rest, tasks=[*matches.tasks, *found.tasks])


def _thoughts(batch: TurnBatch, teacher: Teacher, chosen: torch.Tensor, actions: bool = True) -> list[Thought]:
    """Generates traces at the chosen turns, in one call that every process makes; the result is blank elsewhere."""
    thoughts, rows = [NO_THOUGHT] * len(batch), chosen.nonzero().squeeze(1)
    for row, thought in zip(rows.tolist(), teacher.thoughts(batch, rows, actions), strict=True):
        thoughts[row] = thought
    return thoughts

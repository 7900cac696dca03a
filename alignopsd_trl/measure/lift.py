"""Success with and without skills in the prompt, paired by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alignopsd_trl.common.statistics import Interval, resampled, task_draws

EVERYTHING = "all"

Outcomes = Mapping[str, Sequence[float]]
"""Task -> the outcomes of its episodes."""


@dataclass(frozen=True)
class Success:
    """Success on the tasks of a category, in the unit of the measured value.

    Args:
        without, skilled: mean over tasks of the policy without and with the skill in its prompt.
        lift: the difference, paired by task.
    """

    tasks: int
    without: Interval
    skilled: Interval
    lift: Interval


def successes(without: Outcomes, skilled: Outcomes, category: Mapping[str, str], value: str) -> dict[str, Success]:
    """Computes success with and without the skill, over all tasks (`EVERYTHING`) and for each of several categories.

    Args:
        without, skilled: tasks that only one of them has are left out.
        category: task -> its category.
        value: ``"success"``, whose outcomes are from 0 to 1, or ``"reward"``.
    """
    tasks = [task for task in without if skilled.get(task) and without[task]]
    groups = {EVERYTHING: tasks}
    names = sorted({category[task] for task in tasks})
    if len(names) > 1:
        groups |= {name: [task for task in tasks if category[task] == name] for name in names}
    lowest, highest = (0.0, 1.0) if value == "success" else (-math.inf, math.inf)
    return {name: _success(without, skilled, own, lowest, highest) for name, own in groups.items() if own}


def _success(without: Outcomes, skilled: Outcomes, tasks: Sequence[str], lowest: float, highest: float) -> Success:
    before, after = (np.array([np.mean(side[task]) for task in tasks]) for side in (without, skilled))
    own = ((before, lowest), (after, lowest), (after - before, -highest))
    draws, count = task_draws(len(tasks)), len(tasks)
    return Success(count, *(resampled(draws @ side / count, count, (low, highest)) for side, low in own))

"""Ranks settings by their figures, compares them with GRPO, and advises settings for training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from alignopsd_trl.common.statistics import Interval, for_several, resampled, task_draws

REFERENCE = "grpo"
LEAST = 0.02  # a smaller difference of cosines does not decide
ABOVE, BELOW, UNTOLD = "above GRPO", "below GRPO", "can't be told from GRPO"
EVERYTHING = "all"
MORE_TASKS = ", so it is GRPO's. More --tasks narrow the intervals."
NO_DIFFERENCE = (
    ": no task's siblings differ in their rewards, and nothing is learnt from such tasks. Measure more --tasks or take "
    "a policy that wins some of them and not all (alignopsd warm_start)."
)
STANDING_TEACHER = {"teacher_model_kind": "base", "num_iterations": 4}
"""Settings under which the teacher keeps the initial weights and each round gets four passes."""
TAUGHT_BY = "align_opsd"  # the method whose views are mixed into the distribution
DISTRIBUTION = {"auxiliary_loss": "distribution", "distribution_coefficient": 10.0}

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


def successes(
    without: Outcomes, skilled: Outcomes, category: Mapping[str, str], highest: float = 1.0
) -> dict[str, Success]:
    """Computes success with and without the skill, over all tasks (`EVERYTHING`) and for each of several categories.

    Args:
        without, skilled: tasks that only one of them has are left out.
        category: task -> its category.
        highest: the largest outcome, if 0 is the smallest; infinite where neither is known.
    """
    tasks = [task for task in without if skilled.get(task) and without[task]]
    groups = {EVERYTHING: tasks}
    names = sorted({category[task] for task in tasks})
    if len(names) > 1:
        groups |= {name: [task for task in tasks if category[task] == name] for name in names}
    return {name: _success(without, skilled, own, highest) for name, own in groups.items() if own}


def _success(without: Outcomes, skilled: Outcomes, tasks: Sequence[str], highest: float) -> Success:
    before, after = (np.array([np.mean(side[task]) for task in tasks]) for side in (without, skilled))
    lowest = 0.0 if math.isfinite(highest) else -math.inf
    own = ((before, lowest), (after, lowest), (after - before, -highest))
    draws, count = task_draws(len(tasks)), len(tasks)
    return Success(count, *(resampled(draws @ side / count, count, (low, highest)) for side, low in own))


@dataclass(frozen=True)
class Standing:
    """A setting in the ranking.

    Args:
        label: the method and its settings.
        cosine: cosine of its credit with A_MC.
        difference: its cosine less GRPO's, on the same tasks.
        verdict: `ABOVE`, `BELOW` or `UNTOLD`, by the difference's interval, widened for the number of compared
            settings.
    """

    label: str
    cosine: Interval
    difference: Interval
    verdict: str


def rank(figures: Mapping[str, Mapping[str, Interval]], tasks: int) -> list[Standing]:
    """Ranks settings by the cosine of their credit with A_MC, highest first.

    Args:
        figures: result of `measure.metrics.agreement` with the reference `REFERENCE`.
        tasks: number of measured tasks.
    """
    compared = max(len(figures) - 1, 1)
    found = []
    for label, own in figures.items():
        difference = own.get(f"cosine_minus_{REFERENCE}", Interval(0.0, 0.0, 0.0))
        found.append(Standing(label, own["cosine"], difference, _verdict(for_several(difference, compared, tasks))))
    return sorted(found, key=lambda one: -np.nan_to_num(one.cosine.value, nan=-np.inf))


def _verdict(difference: Interval) -> str:
    if difference.low > 0 and difference.value >= LEAST:
        return ABOVE
    return BELOW if difference.high < 0 and difference.value <= -LEAST else UNTOLD


@dataclass(frozen=True)
class Advice:
    """The settings to train with.

    Args:
        settings: lines of a ``--config`` file.
        reasons: sentences.
    """

    settings: dict[str, Any]
    reasons: list[str]


def advise(
    ranking: Sequence[Standing], settings: Mapping[str, Mapping[str, Any]], lift: Interval | None, siblings: int
) -> Advice:
    """Advises the best setting that is clearly above GRPO, else GRPO. If the lift is clearly above 0, it advises the
    teacher's distribution with AlignOPSD's credit, and names privileged play as the cheaper way.

    Args:
        settings: of each label, as a ``--config`` file has them.
        lift: of the privileged view; `None` without skills.
        siblings: number of siblings in a group.
    """
    best = next((one for one in ranking if one.verdict == ABOVE), None)
    chosen = dict(settings[best.label]) if best else {"method": REFERENCE}
    if best:
        credit = (
            f"Credit: {best.label}. Its cosine with A_MC is {best.difference:+.2f} to GRPO's, clear of 0 with "
            f"{len(ranking) - 1} settings compared."
        )
    else:
        credit = f"Credit: nothing can be told from GRPO here{MORE_TASKS if ranking else NO_DIFFERENCE}"
    if lift is None:
        return Advice(chosen, [credit, "Teacher: there are no skills that it could read."])
    if not lift.low > 0:  # NaN where too few tasks were measured
        return Advice(chosen, [credit, "Teacher: the skill does not clearly lift the policy, so none is followed."])
    own = chosen if chosen["method"] == TAUGHT_BY else {"method": TAUGHT_BY}
    followed = own | DISTRIBUTION | STANDING_TEACHER
    teacher = f"Teacher: the skill lifts the policy, so AlignOPSD follows its distribution: {_shown(followed)}."
    if siblings > 1:
        play = chosen | {"privileged_siblings": siblings // 2} | STANDING_TEACHER
        teacher += f" Cheaper, as it scores nothing, is privileged play: {_shown(play)}."
    return Advice(followed, [credit, teacher])


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())

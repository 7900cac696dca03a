"""Chooses the number of optimiser steps a round for a line, on training tasks, by a rule that is fixed beforehand.

The candidates are lines that differ in their steps alone. The number of a seed is its mean success over the last third
of the rounds. The rule takes the line with the fewest steps whose mean over seeds is within one standard error (of the
best line) of the best mean. Test tasks have no influence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from alignopsd_trl.statistics import mean
from alignopsd_trl.study.spec import STEPS


@dataclass(frozen=True)
class Choice:
    """The chosen number of steps for one method and its settings.

    Args:
        found: optimiser steps of a whole run -> training success of each seed, in percent.
        labels: the same steps -> the line's label.
        chosen: one of these steps.
    """

    environment: str
    found: dict[int, list[float]]
    labels: dict[int, str]
    chosen: int

    def __str__(self) -> str:
        success = ((steps, mean(values).value) for steps, values in sorted(self.found.items()))
        tried = ", ".join(f"{self.labels[steps]} ({steps} steps): {value:.1f}" for steps, value in success)
        return f"{self.environment}: {self.labels[self.chosen]}. Success on training tasks: {tried}."


def choices(rows: pd.DataFrame) -> list[Choice]:
    """Returns one choice for each method and settings that a study trained with several numbers of steps."""
    curves = rows.get("curve_success", pd.Series(dtype=object)).str.len() > 0
    kept = rows[(rows["status"] == "finished") & curves]
    others = kept["settings"].map(_without_steps)
    groups: Any = kept.groupby(["environment", "method", others], sort=False)
    made = [_choice(environment, group) for (environment, _, _), group in groups]
    return [one for one in made if len(one.found) > 1]


def fewest_near_best(found: Mapping[int, Sequence[float]]) -> int:
    """Returns the fewest steps whose mean is within one standard error of the best mean.

    Args:
        found: steps -> one number for each seed. With a single seed the error is 0.
    """
    means = {steps: mean(values).value for steps, values in found.items()}
    best = max(means, key=lambda steps: (means[steps], -steps))
    error = stats.sem(found[best]) if len(found[best]) > 1 else 0.0
    return min(steps for steps, value in means.items() if value >= means[best] - error)


def late_success(curve: Sequence[float]) -> float:
    """Returns the mean over the last third of the rounds (at least one), in percent."""
    last = list(curve)[-max(len(curve) // 3, 1) :]
    return 100 * mean(last).value


def _without_steps(settings: str) -> str:
    return json.dumps({name: value for name, value in json.loads(settings).items() if name not in STEPS})


def _choice(environment: str, group: pd.DataFrame) -> Choice:
    by_steps: Any = group.groupby(group["updates"].astype(int), sort=False)
    found = {steps: [late_success(curve) for curve in rows["curve_success"]] for steps, rows in by_steps}
    labels = {steps: rows["label"].iloc[-1] for steps, rows in by_steps}
    return Choice(environment, found, labels, fewest_near_best(found))

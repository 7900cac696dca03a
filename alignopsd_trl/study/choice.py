"""How many optimiser steps a round a line should take: chosen on training tasks, by a rule that is fixed beforehand.

Of lines that differ in their steps alone, each gets one number a seed: its mean success over the last third of the
rounds. The line with the fewest steps is taken whose mean over seeds is within one standard error (of the best line) of
the best mean. No test task has a say.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from alignopsd_trl.statistics import mean
from alignopsd_trl.study.spec import STEPS


@dataclass(frozen=True)
class Choice:
    """What was chosen for one method and its settings.

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
    """One for each method and settings that a study trained with several numbers of steps."""
    groups: defaultdict[tuple[str, str, str], list[Mapping]] = defaultdict(list)
    for row in rows[rows["status"] == "finished"].to_dict("records"):
        if row.get("curve_success") is not None and len(row["curve_success"]):
            groups[row["environment"], row["method"], _without_steps(row["settings"])].append(row)
    made = [_choice(environment, group) for (environment, _, _), group in groups.items()]
    return [one for one in made if len(one.found) > 1]


def fewest_near_best(found: Mapping[int, Sequence[float]]) -> int:
    """The fewest steps whose mean is within one standard error of the best mean.

    Args:
        found: steps -> one number a seed. With a single seed the error is 0.
    """
    means = {steps: mean(values).value for steps, values in found.items()}
    best = max(means, key=lambda steps: (means[steps], -steps))
    error = stats.sem(found[best]) if len(found[best]) > 1 else 0.0
    return min(steps for steps, value in means.items() if value >= means[best] - error)


def late_success(curve: Sequence[float]) -> float:
    """Percent: mean over the last third of the rounds, one round at least."""
    last = list(curve)[-max(len(curve) // 3, 1) :]
    return 100 * mean(last).value


def _without_steps(settings: str) -> str:
    return json.dumps({name: value for name, value in json.loads(settings).items() if name not in STEPS})


def _choice(environment: str, group: Sequence[Mapping]) -> Choice:
    found: defaultdict[int, list[float]] = defaultdict(list)
    for row in group:
        found[int(row["updates"])].append(late_success(row["curve_success"]))
    labels = {int(row["updates"]): row["label"] for row in group}
    return Choice(environment, dict(found), labels, fewest_near_best(found))

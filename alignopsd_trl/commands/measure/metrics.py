"""Figures of agreement between turn credit and Monte Carlo advantages, with intervals over resampled tasks; the table
of turns that they take (``turns.parquet``); success with and without skills.

Every figure is a function of sums over turns, so a resampled set of tasks costs one product. A sum of squares of A_MC
would contain its noise; the product of its two independent halves is summed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from alignopsd_trl.common.statistics import Interval, group_means, resampled, task_draws
from alignopsd_trl.rollout.monte_carlo.tree import Advantages
from alignopsd_trl.turns import Trajectory

FLAT = 1e-9  # relative deviation below which credit counts as equal on all turns of its trajectories
PIVOTAL = 2.0  # standard errors
NAMES = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "slope", "sign_agreement", "lift")
UNBOUNDED = (-np.inf, np.inf)
LIMITS = {"spearman": (-1.0, 1.0), "sign_agreement": (0.0, 1.0)}  # other figures may exceed 1, since noise is removed
COMPARED = ("r_within", "r_praised", "r_blamed", "cosine", "lift")
MEANING = {
    "r_within": "correlation with A_MC over the turns of a trajectory, noise out",
    "r_praised": "the same, trajectories above their group",
    "r_blamed": "the same, trajectories below their group",
    "spearman": "rank correlation of both less their trajectory's means, noise in",
    "cosine": "cosine with A_MC over all turns, noise out",
    "slope": "credit for a unit of A_MC, within trajectories",
    "sign_agreement": "share of pivotal turns whose credit has the sign of A_MC",
    "lift": "|credit| on pivotal turns over a flat split's",
}


@dataclass(frozen=True)
class Turns:
    """Columns of the turns that were measured, M each.

    Args:
        task, trajectory: numbers from 0.
        outcome: outcome advantage of the turn's trajectory.
        advantage, error: A_MC and its standard error.
        halves: ``(2, M)`` A_MC of either half of the rollouts.
    """

    task: np.ndarray
    trajectory: np.ndarray
    outcome: np.ndarray
    advantage: np.ndarray
    error: np.ndarray
    halves: np.ndarray

    @property
    def pivotal(self) -> np.ndarray:
        return np.abs(self.advantage) > PIVOTAL * self.error

    @property
    def quality(self) -> dict[str, float]:
        """The reliability of A_MC and the share of pivotal turns; NaN without turns."""
        share = float(self.pivotal.mean()) if len(self.task) else float("nan")
        return {"reliability": reliability(self), "pivotal": share}

    @property
    def tasks(self) -> int:
        return int(self.task.max()) + 1 if len(self.task) else 0

    def by_task(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Sums columns over the turns of each task, ``(tasks, columns)``."""
        return np.stack([np.bincount(self.task, weights=one, minlength=self.tasks) for one in columns], axis=1)

    def within(self, values: np.ndarray) -> np.ndarray:
        """Subtracts from values ``(M,)`` their mean over each trajectory."""
        return values - group_means(self.trajectory, values)


def agreement(turns: Turns, credit: Mapping[str, np.ndarray], reference: str, seed: int = 0) -> dict[str, dict]:
    """Computes each variant's figures of `NAMES` as `Interval`, and for those of `COMPARED` also
    ``<figure>_minus_<reference>``.

    Args:
        credit: label -> ``(M,)``.
        reference: the variant that is subtracted, on the same resampled tasks.
    """
    weights = task_draws(turns.tasks, seed)
    drawn: dict[str, dict[str, np.ndarray]] = {label: {} for label in credit}
    tasks: dict[str, dict[str, int]] = {label: {} for label in credit}  # that enter a figure
    for label, values in credit.items():
        for name, (form, columns) in _terms(turns, values).items():
            sums = turns.by_task(columns)
            drawn[label][name], tasks[label][name] = form(*(weights @ sums).T), int((sums != 0).any(1).sum())
    result = {}
    for label, own in drawn.items():
        counts = tasks[label]
        result[label] = {name: resampled(own[name], counts[name], LIMITS.get(name, UNBOUNDED)) for name in NAMES}
        for name in COMPARED if label != reference else ():
            fewer = min(counts[name], tasks[reference][name])
            result[label][f"{name}_minus_{reference}"] = resampled(own[name] - drawn[reference][name], fewer)
    return result


def reliability(turns: Turns) -> float:
    """Returns the share of the variance of A_MC within trajectories that is not noise."""
    total = (turns.within(turns.advantage) ** 2).sum()
    return float((turns.within(turns.halves[0]) * turns.within(turns.halves[1])).sum() / total) if total else np.nan


Term = tuple[Callable[..., np.ndarray], Sequence[np.ndarray]]


def _terms(turns: Turns, credit: np.ndarray) -> dict[str, Term]:
    """Returns for each figure its form and the columns whose sums over turns it takes."""
    inside, truth = turns.within(credit), turns.within(turns.advantage)
    inside = inside * ((inside**2).sum() > FLAT**2 * (credit**2).sum())
    products = inside**2, inside * truth, turns.within(turns.halves[0]) * turns.within(turns.halves[1])
    ranks, true_ranks = _ranks(inside), _ranks(truth)
    size, told = np.abs(credit), turns.pivotal & (credit != 0)
    return {
        "r_within": (_correlation, products),
        "r_praised": (_correlation, [one * (turns.outcome > 0) for one in products]),
        "r_blamed": (_correlation, [one * (turns.outcome < 0) for one in products]),
        "spearman": (_correlation, [ranks**2, ranks * true_ranks, true_ranks**2]),
        "cosine": (_correlation, [credit**2, credit * turns.advantage, turns.halves[0] * turns.halves[1]]),
        "slope": (lambda own, both, other: _ratio(np.where(own > 0, both, np.nan), other), products),
        "sign_agreement": (_ratio, [told & (np.sign(credit) == np.sign(turns.advantage)), told]),
        "lift": (_ratio, [size * turns.pivotal, size * group_means(turns.trajectory, turns.pivotal)]),
    }


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns ``(M,)`` ranks minus their mean. Values that differ by rounding alone are tied."""
    step = FLAT * np.abs(values).max(initial=0.0)
    return rankdata(np.round(values / step) if step else values) - (len(values) + 1) / 2


def _correlation(own: np.ndarray, both: np.ndarray, other: np.ndarray) -> np.ndarray:
    return _ratio(both, np.sqrt(np.clip(own * other, 0, None)))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return numerator / np.where(denominator > 0, denominator, np.nan)


CREDIT = "credit "
"""Columns of credit are named by this word and the variant's label."""

_OF_EPISODE = ("task", "rollout", "category", "won", "reward")


def turn_table(episodes: Sequence[Trajectory], found: Advantages, outcome: np.ndarray) -> pd.DataFrame:
    rows = [
        {name: getattr(one, name) for name in _OF_EPISODE}
        | {"turn": turn.number, "thinking": turn.thought.thinking, "action": turn.action}
        for one in episodes
        for turn in one.turns
    ]
    return pd.DataFrame(rows, columns=[*_OF_EPISODE, "turn", "thinking", "action"]).assign(
        outcome_advantage=outcome,
        a_mc=found.advantage,
        a_mc_error=found.error,
        a_mc_half_0=found.halves[0],
        a_mc_half_1=found.halves[1],
        value_before=found.before,
        value_after=found.after,
        walks=found.rollouts,
    )


def measured_rows(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Returns the turns whose A_MC is known, of tables of different tasks."""
    table = pd.concat([one.assign(part=place) for place, one in enumerate(tables)], ignore_index=True)
    return table[table.a_mc.notna() & table.a_mc_error.notna()]


def turns_of(table: pd.DataFrame) -> Turns:
    """Returns the columns of `measured_rows` that the figures take."""
    return Turns(
        table.groupby(["part", "task"], sort=False).ngroup().to_numpy(),
        table.groupby(["part", "task", "rollout"], sort=False).ngroup().to_numpy(),
        *(table[name].to_numpy() for name in ("outcome_advantage", "a_mc", "a_mc_error")),
        table[["a_mc_half_0", "a_mc_half_1"]].to_numpy().T,
    )


def credit_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns the credit of each variant, by its label."""
    return {name.removeprefix(CREDIT): table[name].to_numpy() for name in table if name.startswith(CREDIT)}


EVERYTHING = "all"

Outcomes = Mapping[str, Sequence[float]]
"""Task -> the outcomes of its episodes."""


@dataclass(frozen=True)
class Success:
    """Success on the tasks of a category, in the unit of the measured value: means over tasks of the policy ``without``
    the skill and ``skilled``, with it in the prompt, and their difference, the ``lift``, paired by task."""

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
    limits, of_lift = ((0.0, 1.0), (-1.0, 1.0)) if value == "success" else (UNBOUNDED, UNBOUNDED)
    found = {}
    for name, own in groups.items() if tasks else ():
        before, after = (np.array([np.mean(side[task]) for task in own]) for side in (without, skilled))
        draws, count = task_draws(len(own)), len(own)
        sides = ((before, limits), (after, limits), (after - before, of_lift))
        found[name] = Success(count, *(resampled(draws @ side / count, count, within) for side, within in sides))
    return found

"""Figures of agreement between turn credit and Monte Carlo advantages, with intervals over resampled tasks.

Every figure is a function of sums over turns, so a resampled set of tasks costs one product. A sum of squares of A_MC
would contain its noise; the product of its two independent halves is summed instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from alignopsd_trl.statistics import Interval, resampled, task_draws

FLAT = 1e-9  # relative deviation below which credit counts as equal on all turns of its trajectories
PIVOTAL = 2.0  # standard errors
NAMES = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "slope", "sign_agreement", "lift")
COLUMNS = {  # of `_sums`
    **{name: slice(3 * place, 3 * place + 3) for place, name in enumerate(NAMES[:5])},
    **{"slope": slice(0, 3), "sign_agreement": slice(15, 17), "lift": slice(17, 19)},
}
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
        count = np.bincount(self.trajectory)
        mean = np.bincount(self.trajectory, weights=values) / np.maximum(count, 1)
        return values - mean[self.trajectory]


def agreement(turns: Turns, credit: Mapping[str, np.ndarray], reference: str, seed: int = 0) -> dict[str, dict]:
    """Computes each variant's figures of `NAMES` as `Interval`, and for those of `COMPARED` also
    ``<figure>_minus_<reference>``.

    Args:
        credit: label -> ``(M,)``.
        reference: the variant that is subtracted, on the same resampled tasks.
    """
    weights = task_draws(turns.tasks, seed)
    sums = {label: _sums(turns, values) for label, values in credit.items()}
    drawn = {label: _figures(weights @ one) for label, one in sums.items()}
    tasks = {label: _tasks(one) for label, one in sums.items()}
    result = {}
    for label, figures in drawn.items():
        own = tasks[label]
        result[label] = {name: resampled(figures[name], own[name], LIMITS.get(name, UNBOUNDED)) for name in NAMES}
        if label != reference:
            for name in COMPARED:
                difference, fewer = figures[name] - drawn[reference][name], min(own[name], tasks[reference][name])
                result[label][f"{name}_minus_{reference}"] = resampled(difference, fewer)
    return result


def reliability(turns: Turns) -> float:
    """Returns the share of the variance of A_MC within trajectories that is not noise."""
    total = (turns.within(turns.advantage) ** 2).sum()
    return float((turns.within(turns.halves[0]) * turns.within(turns.halves[1])).sum() / total) if total else np.nan


def _sums(turns: Turns, credit: np.ndarray) -> np.ndarray:
    """Computes ``(tasks, columns)`` sums for `_figures`, see `COLUMNS`."""
    inside, truth = turns.within(credit), turns.within(turns.advantage)
    flat = (inside**2).sum() <= FLAT**2 * (credit**2).sum()
    inside = np.zeros_like(inside) if flat else inside
    clean = turns.within(turns.halves[0]) * turns.within(turns.halves[1])
    praised, blamed = turns.outcome > 0, turns.outcome < 0
    ranks = _ranks(inside), _ranks(truth)
    pivotal = turns.pivotal
    count = np.maximum(np.bincount(turns.trajectory), 1)[turns.trajectory]
    share = np.bincount(turns.trajectory, weights=pivotal)[turns.trajectory] / count
    columns = [inside**2, inside * truth, clean]
    columns += [column * praised for column in columns[:3]] + [column * blamed for column in columns[:3]]
    columns += [ranks[0] ** 2 * (not flat), ranks[0] * ranks[1] * (not flat), ranks[1] ** 2]
    columns += [credit**2, credit * turns.advantage, turns.halves[0] * turns.halves[1]]
    columns += [pivotal & (np.sign(credit) == np.sign(turns.advantage)) & (credit != 0), pivotal & (credit != 0)]
    columns += [np.abs(credit) * pivotal, np.abs(credit) * share]
    return turns.by_task(columns)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns ``(M,)`` ranks minus their mean. Values that differ by rounding alone are tied."""
    step = FLAT * np.abs(values).max(initial=0.0)
    return rankdata(np.round(values / step) if step else values) - (len(values) + 1) / 2


def _figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the figures of each row of sums."""

    def correlation(own: np.ndarray, both: np.ndarray, other: np.ndarray) -> np.ndarray:
        return _ratio(both, np.sqrt(np.clip(own * other, 0, None)))

    def slope(own: np.ndarray, both: np.ndarray, other: np.ndarray) -> np.ndarray:
        return _ratio(np.where(own > 0, both, np.nan), other)

    made = {"slope": slope, "sign_agreement": _ratio, "lift": _ratio}
    return {name: made.get(name, correlation)(*sums[:, COLUMNS[name]].T) for name in NAMES}


def _tasks(sums: np.ndarray) -> dict[str, int]:
    """Counts the tasks that enter each figure."""
    return {name: int((sums[:, COLUMNS[name]] != 0).any(1).sum()) for name in NAMES}


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    safe = np.where(denominator > 0, denominator, np.nan)
    return numerator / safe


# Kinds of decision


def kinds(actions: Sequence[str], tasks: Sequence[str], least: float = 0.03) -> list[str]:
    """Names the kind of each action: its longest prefix, in words, that a share ``least`` of the actions have and that
    occurs in three tasks (in all if there are fewer)."""
    words = [_words(action) for action in actions]
    counts: Counter[tuple[str, ...]] = Counter()
    met: dict[tuple[str, ...], set[str]] = {}
    for parts, task in zip(words, tasks, strict=True):
        for length in range(1, len(parts) + 1):
            counts[tuple(parts[:length])] += 1
            met.setdefault(tuple(parts[:length]), set()).add(task)
    needed, spread = max(2.0, least * len(actions)), min(3, len(set(tasks)))

    def name(parts: list[str]) -> str:
        beginnings = (tuple(parts[:length]) for length in range(len(parts), 0, -1))
        found = next((one for one in beginnings if counts[one] >= needed and len(met[one]) >= spread), ())
        shown = "".join(found).strip()
        return (shown + (" ..." if len(found) < len(parts) else "")) if found else "other"

    return [name(parts) for parts in words]


def _words(action: str) -> list[str]:
    """Splits an action into words: ``click[buy now]`` into ``click[``, ``buy ``, ``now]``; also after tags."""
    return [part for part in re.split(r"(?<=[ \[(>])|(?=<)", action) if part] or ["(none)"]


def by_kind(
    turns: Turns, names: Sequence[str], credit: Mapping[str, np.ndarray], seed: int = 0
) -> list[dict[str, Any]]:
    """Makes one row per kind and sign of the trajectory's advantage: turns, mean A_MC (`Interval`), share of pivotal
    turns, and the ratio of each variant's credit to a flat split's (`Interval`)."""
    label, side, size = np.array(names), np.sign(turns.outcome), np.abs(turns.outcome)
    rows = []
    for kind in sorted(set(names), key=lambda one: -names.count(one)):
        for name, sign in (("praised", 1), ("blamed", -1)):
            here = (side == sign) & (label == kind)
            if not here.any():
                continue
            rows.append(
                {
                    "kind": kind,
                    "side": name,
                    "turns": int(here.sum()),
                    "tasks": len(set(turns.task[here])),
                    "a_mc": task_mean(turns, turns.advantage, here, seed),
                    "pivotal": float(turns.pivotal[here].mean()),
                    "weight": {
                        one: task_mean(turns, values * side / np.where(size, size, 1), here * size, seed)
                        for one, values in credit.items()
                    },
                }
            )
    return rows


def task_mean(turns: Turns, values: np.ndarray, weights: np.ndarray, seed: int = 0) -> Interval:
    """Computes a weighted mean over turns, with an interval over resampled tasks.

    Args:
        weights: ``(M,)`` 0 or more.
    """
    sums = turns.by_task([values * weights, weights])
    return resampled(_ratio(*(task_draws(turns.tasks, seed) @ sums).T), int((sums[:, 1] > 0).sum()))

"""All statistics of the package: intervals, differences paired by seed, and resampling.

| what varies | interval |
| --- | --- |
| seeds of a study | Student's (`mean`, `paired`) |
| tasks of a measurement of credit | bootstrap over tasks, stretched for how few they are (`task_draws`, `resampled`) |
| clusters of turns (tasks, updates, episodes) | bootstrap over clusters (`clustered_ratio`) |
| tasks of a round, each with several episodes | Wilson with the episodes' effective number (`share_of_tasks`) |
| episodes of a panel | Wilson for shares, bootstrap for means (`wilson`, `bootstrap_mean`) |

All intervals are 95 %, and all draws are the same in every call. `spread` orders rows of several kinds evenly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

DRAWS = 5000  # as in the paper
TASK_DRAWS = 2000
EPISODE_DRAWS = 4000
TAIL = 0.025
LEAST_TASKS = 3  # with fewer tasks their variance is unknown
LEAST_CLUSTERS = 5  # with fewer clusters their variance is unknown


# Seeds


@dataclass(frozen=True)
class Mean:
    """A mean and ``half``, half the width of its 95 % interval; NaN for fewer than two seeds."""

    value: float
    half: float
    count: int

    def __format__(self, form: str = "") -> str:
        """Formats the value with ``form``, and ``half`` with ``form`` without its sign."""
        form = form or ".1f"
        return f"{self.value:{form}}" + ("" if math.isnan(self.half) else f" ± {self.half:{form.lstrip('+')}}")

    __str__ = __format__


def mean(values: Sequence[float]) -> Mean:
    """Returns the mean over seeds of one number each. Raises `ValueError` without seeds."""
    count = len(values)
    if not count:
        raise ValueError("a mean needs at least one seed")
    center = math.fsum(values) / count
    if count == 1:
        return Mean(center, math.nan, 1)
    return Mean(center, float(stats.t.ppf(1 - TAIL, count - 1) * stats.sem(values)), count)


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Mean | None:
    """Returns the mean difference over common seeds; `None` without common seeds."""
    seeds = sorted(set(values) & set(reference))
    return mean([values[seed] - reference[seed] for seed in seeds]) if seeds else None


# Tasks


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval. Value and ends are NaN where the figure is undefined, as for flat credit. With
    fewer than `LEAST_TASKS` tasks the ends alone are NaN."""

    value: float
    low: float = np.nan
    high: float = np.nan

    def __format__(self, form: str = "") -> str:
        form = form or ".2f"
        if np.isnan(self.value):
            return "-"
        ends = "-" if np.isnan(self.low) else f"{self.low:{form}}, {self.high:{form}}"
        return f"{self.value:{form}} [{ends}]"

    __str__ = __format__


def task_draws(tasks: int, seed: int = 0) -> np.ndarray:
    """Returns each task's weight ``(1 + TASK_DRAWS, tasks)``: 1 in the first row, in others counts of resampling."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(tasks, np.full(tasks, 1 / max(tasks, 1)), size=TASK_DRAWS)
    return np.concatenate([np.ones((1, tasks)), drawn])


def resampled(drawn: np.ndarray, tasks: int, limits: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """Returns the interval of a figure of so many tasks. ``drawn`` is the figure of each row of `task_draws`, the first
    the data's own, ``limits`` its smallest and its largest possible value."""
    others = drawn[1:][np.isfinite(drawn[1:])]
    if not np.isfinite(drawn[0]) or not len(others):
        return Interval(np.nan)
    value = float(drawn[0])
    if tasks < LEAST_TASKS:
        return Interval(value)
    low, high = np.quantile(others, [TAIL, 1 - TAIL])
    found = _widened(Interval(value, min(low, value), max(high, value)), stretch(tasks))
    return Interval(value, *np.clip([found.low, found.high], *limits).tolist())


def _widened(interval: Interval, factor: float) -> Interval:
    low, high = (interval.value + factor * (end - interval.value) for end in (interval.low, interval.high))
    return Interval(interval.value, low, high)


def stretch(tasks: int) -> float:
    """Returns sqrt(n / (n - 1)) times Student's quantile over the normal one: the ratio of Student's interval to the
    bootstrap percentiles for a mean of n tasks, which are too narrow: they use the sample's standard deviation for the
    population's, and the normal distribution for Student's. Hesterberg (2015, What teachers should know about the
    bootstrap) corrects the percentiles by it; here it moves the ends, so that a finished interval can be stretched."""
    return float(np.sqrt(tasks / (tasks - 1)) * stats.t.ppf(1 - TAIL, tasks - 1) / stats.norm.ppf(1 - TAIL))


def for_several(interval: Interval, comparisons: int, tasks: int) -> Interval:
    """Widens an interval so that all ``comparisons`` intervals hold at once with 95 % (Bonferroni). An interval over
    fewer than `LEAST_TASKS` tasks is returned unchanged."""
    if tasks < LEAST_TASKS:
        return interval
    return _widened(interval, float(stats.t.ppf(1 - TAIL / comparisons, tasks - 1) / stats.t.ppf(1 - TAIL, tasks - 1)))


# Clusters of turns


def clustered_ratio(top: ArrayLike, bottom: ArrayLike) -> list[float] | None:
    """Returns sum(top) / sum(bottom) over clusters with its 95 % interval, ``[value, low, high]``; `None` if
    sum(bottom) is 0. Low and high are NaN with fewer than `LEAST_CLUSTERS` clusters. ``top`` and ``bottom`` have one
    number per cluster each, such as the counts of differing and of compared turns."""
    above, below = np.asarray(top, float), np.asarray(bottom, float)
    if not below.sum():
        return None
    value = float(above.sum() / below.sum())
    if len(above) < LEAST_CLUSTERS:
        return [value, np.nan, np.nan]
    picks = np.random.default_rng(0).integers(0, len(above), (DRAWS, len(above)))
    compared = below[picks].sum(1)
    drawn = above[picks].sum(1)[compared > 0] / compared[compared > 0]
    return [value, *np.quantile(drawn, [TAIL, 1 - TAIL]).tolist()]


# Episodes


def share_of_tasks(share: float, squares: float, tasks: float, episodes: float) -> Interval:
    """Returns the success rate p of tasks with several episodes each, with an interval that counts tasks as clusters.
    ``squares`` is the mean over tasks of the squared success rate, q.

    It is Wilson's interval of n* = p'(1 - p') k / (q' - p'^2) episodes, between the number of tasks k and that of
    episodes: the number of episodes divided by their design effect (Kish, 1965, Survey Sampling; Korn and Graubard,
    1998, Survey Methodology 24, use such a number in intervals of shares). p' = (k p + 1/2) / (k + 1) and q' = (k q +
    1/2) / (k + 1) add one task that is won half of the time, since few tasks, or only won or only lost ones, do not
    show that tasks are alike. Over 2 to 16 tasks of 4 or 8 episodes, drawn from beta distributions, 93 to 100 % of the
    intervals held the truth; Wilson's interval of all episodes did so in down to 60 %.
    """
    mean, square = (tasks * share + 0.5) / (tasks + 1), (tasks * squares + 0.5) / (tasks + 1)
    alike = tasks * mean * (1 - mean) / max(square - mean**2, 1e-9)
    low, high = wilson(share, min(max(alike, tasks), episodes))
    return Interval(share, low, high)


def wilson(share: float, episodes: float) -> tuple[float, float]:
    """Returns Wilson's interval of a share. ``episodes`` need not be a whole number."""
    z = float(stats.norm.ppf(1 - TAIL))
    center = (share + z**2 / (2 * episodes)) / (1 + z**2 / episodes)
    half = z / (1 + z**2 / episodes) * math.sqrt(share * (1 - share) / episodes + z**2 / (4 * episodes**2))
    return max(center - half, 0.0), min(center + half, 1.0)


def surely_apart(one: Interval, other: Interval) -> bool:
    """Returns whether shares of different tasks differ by more than their intervals allow; false where an interval is
    unknown. Newcombe (1998, Statistics in Medicine 17) adds the squares of the halves that face each other."""
    below, above = sorted([one, other], key=lambda found: found.value)
    return above.value - below.value > math.hypot(above.value - above.low, below.high - below.value)


def bootstrap_mean(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Returns the percentiles of the mean over resampled values, which stay within the values' range. The draws are
    always the same, whatever the values' order."""
    drawn = np.random.default_rng(0).integers(len(values), size=(EPISODE_DRAWS, len(values)))
    low, high = np.quantile(np.sort(np.asarray(values, float))[drawn].mean(axis=1), [TAIL, 1 - TAIL]).tolist()
    return low, high


def spread(order: Sequence[int], kinds: Sequence[Hashable]) -> list[int]:
    """Spreads the rows of each kind (``kinds[row]``) evenly over the whole; those of one kind keep their order."""
    counts, seen, places = Counter(kinds[row] for row in order), Counter[Hashable](), {}
    for row in order:
        places[row] = (seen[kinds[row]] + 0.5) / counts[kinds[row]]
        seen[kinds[row]] += 1
    return sorted(order, key=places.__getitem__)


def group_means(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Computes ``(M,)`` the mean of the values of each entry's group."""
    return (np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1))[group]

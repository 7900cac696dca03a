"""95 % intervals over tasks: tasks are resampled, and what that gives is stretched for how few they are.

Percentiles of a bootstrap are too narrow where few are drawn from: they take the spread of a sample for that of where
it came from, and the normal distribution for Student's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

DRAWS = 2000
LEAST = 3  # tasks; fewer don't tell how tasks vary
TAIL = 0.025


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval. The value is NaN where it is not defined (credit that is flat, say), and so are
    the ends; these alone where there are fewer than `LEAST` tasks."""

    value: float
    low: float = np.nan
    high: float = np.nan

    def __str__(self) -> str:
        return format(self)

    def __format__(self, form: str) -> str:
        form = form or ".2f"
        if np.isnan(self.value):
            return "-"
        ends = "-" if np.isnan(self.low) else f"{self.low:{form}}, {self.high:{form}}"
        return f"{self.value:{form}} [{ends}]"


def task_draws(tasks: int, seed: int = 0) -> np.ndarray:
    """``(1 + DRAWS, tasks)`` how often each task counts: once each, then as resampled."""
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(tasks, np.full(tasks, 1 / max(tasks, 1)), size=DRAWS)
    return np.concatenate([np.ones((1, tasks)), drawn])


def resampled(drawn: np.ndarray, tasks: int, limits: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """Of a figure of the rows of `task_draws`: the first is of the data themselves.

    Args:
        tasks: that have a part in the figure.
        limits: what it can be at all.
    """
    others = drawn[1:][np.isfinite(drawn[1:])]
    if not np.isfinite(drawn[0]) or not len(others):
        return Interval(np.nan)
    low, high = np.quantile(others, [TAIL, 1 - TAIL])
    found = stretched(drawn[0], low, high, tasks)
    return Interval(found.value, *np.clip([found.low, found.high], *limits).tolist())


def stretched(value: float, low: float, high: float, tasks: int) -> Interval:
    """An interval that would do for many tasks, made right for few: both its halves times `stretch`."""
    if tasks < LEAST:
        return Interval(float(value))
    factor = stretch(tasks)
    return Interval(
        float(value), float(value - factor * max(value - low, 0)), float(value + factor * max(high - value, 0))
    )


def stretch(tasks: int) -> float:
    """sqrt(n / (n - 1)) times Student's quantile over the normal one: what the mean of n tasks lacks between the
    percentiles of its bootstrap and Student's interval. Hesterberg (2015, What teachers should know about the
    bootstrap) moves the percentiles for it; this moves the ends, so that an interval can be stretched afterwards."""
    return float(np.sqrt(tasks / (tasks - 1)) * t.ppf(1 - TAIL, tasks - 1) / norm.ppf(1 - TAIL))

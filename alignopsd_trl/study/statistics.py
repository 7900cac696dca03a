"""Means over seeds with Student's 95 % interval, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class Mean:
    """``half``: half the width of the 95 % interval; NaN for fewer than two seeds."""

    value: float
    half: float
    count: int

    def __str__(self) -> str:
        return f"{self.value:.1f}" if math.isnan(self.half) else f"{self.value:.1f} ± {self.half:.1f}"


def mean(values: Sequence[float]) -> Mean:
    """Mean of one number a seed.

    Raises:
        ValueError: without any.
    """
    count = len(values)
    if not count:
        raise ValueError("a mean needs at least one seed")
    center = math.fsum(values) / count
    if count == 1:
        return Mean(center, math.nan, 1)
    deviation = math.sqrt(math.fsum((value - center) ** 2 for value in values) / (count - 1))
    return Mean(center, float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count), count)


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Mean | None:
    """Mean difference over the seeds that both have; `None` if there are none."""
    seeds = sorted(set(values) & set(reference))
    return mean([values[seed] - reference[seed] for seed in seeds]) if seeds else None


def ratio(values: Mapping[int, float], reference: Mapping[int, float]) -> Mean | None:
    """Mean of the quotients of the seeds that both have; `None` if there are none."""
    seeds = [seed for seed in sorted(set(values) & set(reference)) if reference[seed]]
    return mean([values[seed] / reference[seed] for seed in seeds]) if seeds else None

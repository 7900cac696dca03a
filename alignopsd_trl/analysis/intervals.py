"""Intervals from resampling whole clusters (tasks, updates, episodes): turns of one are no independent facts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 2000
LEAST = 5  # clusters; fewer tell nothing of how they vary


def ratio(top: Sequence[float], bottom: Sequence[float], draws: int = DRAWS) -> list[float] | None:
    """sum(top) / sum(bottom) over clusters as ``[value, low, high]``, 95 %; `None` without anything to divide by. With
    fewer than `LEAST` clusters low and high are NaN.

    Args:
        top, bottom: one number a cluster each, such as what differs and what was compared.
    """
    top, bottom = np.asarray(top, float), np.asarray(bottom, float)
    if not bottom.sum():
        return None
    value = float(top.sum() / bottom.sum())
    if len(top) < LEAST:
        return [value, np.nan, np.nan]
    picks = np.random.default_rng(0).integers(0, len(top), (draws, len(top)))
    below = bottom[picks].sum(1)
    drawn = top[picks].sum(1)[below > 0] / below[below > 0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [value, float(low), float(high)]

"""The common style of all figures' axes. It uses no pyplot, so a notebook's own settings stay unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

try:
    from matplotlib import rc_context as rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("figures need matplotlib: pip install 'alignopsd-trl[studies]'") from error


BLUE, ORANGE, PURPLE, GREEN, GREY = "#2166ac", "#b35806", "#7b3294", "#1b7837", "#8a919c"
"""Colours that colour-blind people can distinguish, also in grey; lines also differ in dashes."""

LINES = ((BLUE, "-"), (ORANGE, "--"), (PURPLE, "-."), (GREEN, ":"), (GREY, (0, (5, 1))), ("#000000", (0, (1, 1))))
SMOOTH = 7  # updates of the exponential moving average, as in the paper's training curves


def panels(
    count: int, width: float = 3.6, height: float = 3.0, columns: int | None = None, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Makes a figure of ``count`` axes, ``columns`` in a row; ``shared`` is of `matplotlib.figure.Figure.subplots`."""
    columns = min(count, columns or count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.1, h_pad=0.08)  # inches, so that labels of neighbours do not overlap
    grid = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for spare in grid[count:]:
        spare.set_axis_off()
    return figure, grid[:count]


def label(axis: Axes, title: str, x: str, y: str, legend: bool = False) -> None:
    """Sets title, labels with units, a light grid, and a legend on request."""
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    if legend:
        axis.legend(fontsize=7, framealpha=0.8, edgecolor="none")


def percent(axis: Axes) -> None:
    """Sets the y axis to per cent, with margins for points at 0 and at 100."""
    axis.set_ylim(-3, 103)


def smoothed(values: Iterable[float], span: int = SMOOTH) -> np.ndarray:
    """Returns the exponential moving average, in which the newest value weighs 2 / (span + 1), without missing
    values."""
    return pd.Series(list(values), dtype=float).ewm(span=span, adjust=False, ignore_na=True).mean().to_numpy()


def curve(
    axis: Axes,
    steps: ArrayLike,
    values: Sequence[float] | pd.Series,
    number: int,
    name: str,
    ends: Sequence[Sequence[float]] | None = None,
) -> None:
    """Draws a line and a band between the ``ends`` of its intervals. From twice `SMOOTH` measurements on both are
    smoothed, and the measurements are faint."""
    colour, dashes = LINES[number % len(LINES)]
    many = len(values) >= 2 * SMOOTH
    if many:
        axis.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
    drawn = smoothed(values) if many else values
    if ends is not None:
        low, high = (smoothed(one) if many else one for one in ends)
        band(axis, steps, low, high, colour)
    axis.plot(
        steps, drawn, color=colour, linestyle=dashes, linewidth=1.6, label=name, marker=None if many else "o", ms=3
    )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def band(axis: Axes, x: Any, low: Any, high: Any, colour: str, alpha: float = 0.15) -> None:
    axis.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)

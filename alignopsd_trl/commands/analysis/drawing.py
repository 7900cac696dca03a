"""The common style of all figures' axes, and the result of an analysis: numbers, the figure and its data as tables. It
uses no pyplot, so a notebook's own settings stay unchanged."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from alignopsd_trl.common.files import write_bytes, write_json, write_text
from alignopsd_trl.runs.owned import owned

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
    marker = None if many else "o"
    axis.plot(steps, drawn, color=colour, linestyle=dashes, linewidth=1.6, label=name, marker=marker, ms=3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def band(axis: Axes, x: Any, low: Any, high: Any, colour: str, alpha: float = 0.15) -> None:
    axis.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)


@dataclass(frozen=True, repr=False)
class AnalysisResult:
    """The result of one analysis; in a notebook it shows its figure.

    Attributes:
        name: name of the analysis and of the files that `save` writes.
        numbers: the figures, for JSON. An interval is ``[mean, low, high]`` (95 %, bootstrap; NaN for few clusters).
    """

    name: str
    numbers: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    figure: Figure

    def save(self, folder: str | os.PathLike) -> list[Path]:
        """Writes ``NAME.png``, ``NAME.json`` and a ``NAME_TABLE.csv`` per table, and returns their paths."""
        numbers, picture = (Path(folder) / f"{self.name}.{kind}" for kind in ("json", "png"))
        tables = {Path(folder) / f"{self.name}_{name}.csv": table for name, table in self.tables.items()}
        paths = [numbers, *tables, picture]
        with owned("analyse", *paths):
            write_json(numbers, self.numbers)
            for path, table in tables.items():
                write_text(path, table.to_csv(index=False))
            write_bytes(picture, self._repr_png_())
        return paths

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, dpi=160, metadata={"Software": ""})
        return buffer.getvalue()

    def __repr__(self) -> str:
        return "\n".join([f"{self.name}:", *_lines(self.numbers, "  ")])


def _lines(numbers: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{name}: {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(one, float) for one in value):
        return f"{value[0]:.4g}" + (f" [{value[1]:.4g}, {value[2]:.4g}]" if value[1] == value[1] else "")
    return str(value)

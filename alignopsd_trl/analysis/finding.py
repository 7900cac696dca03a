"""The result of an analysis: numbers, the figure and the figure's data as tables."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.analysis.drawing import Figure
from alignopsd_trl.common.files import write_bytes, write_json, write_text
from alignopsd_trl.runs.owned import owned

DOTS = 160  # dots per inch


@dataclass(frozen=True, repr=False)
class Finding:
    """The result of one analysis; in a notebook it shows its figure.

    Attributes:
        name: name of the analysis and of the files that `save` writes.
        numbers: the figures, for JSON. An interval is ``[mean, low, high]`` (95 %, bootstrap; NaN for few clusters).
        tables: the data of the figure, by name.
        figure: a labelled figure with units.
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
        self.figure.savefig(buffer, dpi=DOTS, metadata={"Software": ""})
        return buffer.getvalue()

    def __repr__(self) -> str:
        return "\n".join([f"{self.name}:", *_lines(self.numbers, "  ")])


def _lines(numbers: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {_shown(value)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(one, float) for one in value):
        return f"{value[0]:.4g}" + (f" [{value[1]:.4g}, {value[2]:.4g}]" if value[1] == value[1] else "")
    return str(value)

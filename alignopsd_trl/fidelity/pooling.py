"""Several measurements that differ in their tasks, taken together: narrower intervals (``fidelity --pool``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from alignopsd_trl.fidelity.metrics import Turns, agreement
from alignopsd_trl.fidelity.report import figure_lines, plain
from alignopsd_trl.statistics import Interval


def pool(folders: Sequence[Path], output: Path | None = None) -> dict[str, Any]:
    """Prints the figures of all measured turns together and writes them to ``pooled.json`` in ``output``.

    Raises:
        ValueError: if a folder holds no finished measurement, or their variants differ.
    """
    _check(folders)
    turns, credit, known = pooled(folders)
    reference = "align_opsd" if "align_opsd" in credit else next(iter(credit))
    figures = agreement(turns, credit, reference, 0)
    pages = [json.loads((folder / "fidelity.json").read_text(encoding="utf-8")) for folder in folders]
    found = plain(
        {
            "commands": [page["command"].strip() for page in pages],
            "measured_tasks": len(np.unique(turns.task)),
            "measured_turns": known,
            "figures": figures,
        }
    )
    print(f"{known} measured turns of {found['measured_tasks']} groups that differ", *figure_lines(figures), sep="\n")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "pooled.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def _check(folders: Sequence[Path]) -> None:
    first: set[str] = set()
    for folder in folders:
        if not all((folder / name).is_file() for name in ("fidelity.json", "turns.parquet")):
            raise ValueError(
                f"--pool {folder}: no finished measurement there; name folders that fidelity's --output was"
            )
        variants = {name for name in parquet.read_schema(folder / "turns.parquet").names if name.startswith("credit ")}
        first = first or variants
        if differ := sorted(one.removeprefix("credit ") for one in first ^ variants):
            raise ValueError(
                f"--pool {folder}: only this folder or the first one has {', '.join(differ)}; measure both with the "
                "same --methods and --vary"
            )


def pooled(folders: Sequence[Path]) -> tuple[Turns, dict[str, np.ndarray], int]:
    """The measured turns of all folders, every variant's credit of them, and how many turns there are."""
    columns: dict[str, list[Any]] = {}
    for number, folder in enumerate(folders):
        table = parquet.read_table(folder / "turns.parquet").to_pydict()
        kept = measured(folder).nonzero()[0].tolist()
        for name, values in table.items():
            columns.setdefault(name, []).extend(values[place] for place in kept)
        columns.setdefault("folder", []).extend([number] * len(kept))
    task = [f"{one} {other}" for one, other in zip(columns["folder"], columns["task"], strict=True)]
    trajectory = [f"{one} {other}" for one, other in zip(task, columns["rollout"], strict=True)]
    turns = Turns(
        np.unique(task, return_inverse=True)[1],
        np.unique(trajectory, return_inverse=True)[1],
        np.array(columns["outcome_advantage"]),
        np.array(columns["a_mc"]),
        np.array(columns["a_mc_error"]),
        np.array([columns["a_mc_half_0"], columns["a_mc_half_1"]]),
    )
    credit = {name.removeprefix("credit "): np.array(columns[name]) for name in columns if name.startswith("credit ")}
    return turns, credit, len(task)


def measured(folder: Path) -> np.ndarray:
    """Which of the folder's turns have an A_MC, bool."""
    column = parquet.read_table(folder / "turns.parquet", columns=["a_mc"])["a_mc"].to_numpy()
    return ~np.isnan(column.astype(float))


def short(figure: dict[str, Any]) -> str:
    """As `Interval` is shown."""
    return str(Interval(*(np.nan if figure[name] is None else figure[name] for name in ("value", "low", "high"))))

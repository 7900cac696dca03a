"""Pools measurements of different tasks for narrower intervals (``fidelity --pool``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet

from alignopsd_trl.measure.metrics import Turns, agreement
from alignopsd_trl.measure.report import figure_lines
from alignopsd_trl.runs.files import plain, read_json, write_json


def pool(folders: Sequence[Path], output: Path | None = None) -> dict[str, Any]:
    """Prints the figures of all measured turns together and writes them to ``pooled.json`` in ``output``.

    Raises:
        ValueError: if a folder holds no finished measurement, or their variants differ.
    """
    _check(folders)
    turns, credit, known = pooled(folders)
    reference = "align_opsd" if "align_opsd" in credit else next(iter(credit))
    figures = agreement(turns, credit, reference, 0)
    commands = [read_json(folder / "fidelity.json")["command"].strip() for folder in folders]
    counts = {"measured_tasks": turns.tasks, "measured_turns": known}
    found = plain({"commands": commands, **counts, "figures": figures})
    print(f"{known} measured turns of {found['measured_tasks']} groups that differ", *figure_lines(figures), sep="\n")
    if output is not None:
        write_json(output / "pooled.json", found)
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
    """Reads the measured turns of all folders, every variant's credit, and the number of turns."""
    parts = [pd.read_parquet(folder / "turns.parquet").assign(folder=place) for place, folder in enumerate(folders)]
    table = pd.concat(parts, ignore_index=True)
    table = table[table.a_mc.notna()]
    turns = Turns(
        table.groupby(["folder", "task"]).ngroup().to_numpy(),
        table.groupby(["folder", "task", "rollout"]).ngroup().to_numpy(),
        *(table[name].to_numpy() for name in ("outcome_advantage", "a_mc", "a_mc_error")),
        table[["a_mc_half_0", "a_mc_half_1"]].to_numpy().T,
    )
    credit = {name.removeprefix("credit "): table[name].to_numpy() for name in table if name.startswith("credit ")}
    return turns, credit, len(table)

"""Pools measurements of `alignopsd_trl.fidelity` that differ in their tasks alone: narrower intervals.

python -m alignopsd_trl.fidelity.pooling outputs/fidelity_0 outputs/fidelity_1 --output pooled.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from alignopsd_trl.fidelity.intervals import Interval
from alignopsd_trl.fidelity.metrics import Turns, agreement
from alignopsd_trl.fidelity.report import plain

SHOWN = ("r_within", "r_praised", "r_blamed", "lift")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="what --output of alignopsd_trl.fidelity was")
    parser.add_argument("--reference", default="align_opsd", help="the variant that differences are taken to")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    turns, credit, known = pooled(arguments.folders)
    pages = [json.loads((folder / "fidelity.json").read_text(encoding="utf-8")) for folder in arguments.folders]
    found = plain(
        {
            "commands": [page["command"].strip() for page in pages],
            "measured_tasks": len(np.unique(turns.task)),
            "measured_turns": known,
            "figures": agreement(turns, credit, arguments.reference, 0),
        }
    )
    shown = [*SHOWN, f"r_within_minus_{arguments.reference}"]
    for name, figures in found["figures"].items():
        print(name, {key: short(figures[key]) for key in shown if key in figures})
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


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


if __name__ == "__main__":
    main()

"""The page of a measurement, and several measurements of different tasks taken together (``measure --pool``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.common.files import plain, read_json, write_json
from alignopsd_trl.common.progress import escaped
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.measure.metrics import MEANING, PIVOTAL, agreement
from alignopsd_trl.measure.table import credit_of, measured_rows, turns_of

SHOWN = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "sign_agreement", "lift")


def page(facts: Mapping[str, Any], figures: Mapping[str, Mapping[str, Interval]]) -> str:
    """Returns the page of text (Markdown)."""
    lines = ["# Credit fidelity", "", facts["command"], "", _summary(facts), ""]
    if facts.get("failed_rollouts"):
        first = facts["first_failure"] or "no prompt fits max_prompt_length"
        lines += [f"Left out: {facts['failed_rollouts']} rollouts that failed; the first: {first}", ""]
    if not figures:
        return "\n".join([*lines, "No group differs in its rewards: there is no credit to measure.", ""])
    lines += [*figure_lines(figures), "", *(f"{name}: {MEANING[name]}." for name in SHOWN)]
    lines += ["'-' where credit is the same on all turns of a trajectory. Intervals: 95 %, resampled tasks.", ""]
    return "\n".join(lines)


def markdown(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Returns the lines of a table (Markdown)."""
    head = list(head)
    return ["| " + " | ".join(map(escaped, row)) + " |" for row in [head, ["---"] * len(head), *rows]]


def figure_lines(figures: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """Returns a table with one row per variant (Markdown)."""
    return markdown(["variant", *SHOWN], ([label, *(row[name] for name in SHOWN)] for label, row in figures.items()))


def _summary(facts: Mapping[str, Any]) -> str:
    won = f"mean reward {facts['reward']:.3g}" if facts["success"] is None else f"{facts['success']:.0%} won"
    return (
        f"{facts['rollouts']} rollouts of {facts['tasks']} tasks, {won}; {facts['turns']} turns, "
        f"{facts['measured_turns']} of them in the {facts['measured_tasks']} groups that differ. {facts['walks']} "
        f"Monte Carlo rollouts ({facts['walked_turns']} turns), median {facts['median_walks']:.0f} through a "
        f"turn's state. Reliability of A_MC {_number(facts['reliability'])}; {_number(facts['pivotal'])} of the turns "
        f"are pivotal (|A_MC| above {PIVOTAL:g} standard errors). {facts['cpu_seconds']:.0f} CPU seconds."
    )


def _number(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.2f}"


# Several measurements


def pool(folders: Sequence[Path], output: Path | None = None) -> dict[str, Any]:
    """Prints the figures of all measured turns together and writes them to ``pooled.json`` in ``output``.

    Raises:
        ValueError: if a folder holds no finished measurement, or their variants differ.
    """
    table = pooled(folders)
    turns, credit = turns_of(table), credit_of(table)
    figures = agreement(turns, credit, "align_opsd" if "align_opsd" in credit else next(iter(credit)))
    commands = [read_json(folder / "fidelity.json")["command"].strip() for folder in folders]
    counts = {"measured_tasks": turns.tasks, "measured_turns": len(table)}
    print(f"{len(table)} measured turns of {turns.tasks} groups that differ", *figure_lines(figures), sep="\n")
    found = plain({"commands": commands, **counts, "figures": figures})
    if output is not None:
        write_json(output / "pooled.json", found)
    return found


def pooled(folders: Sequence[Path]) -> pd.DataFrame:
    """Reads the measured turns of all folders."""
    tables = [_read(folder) for folder in folders]
    for folder, own in zip(folders, tables, strict=True):
        if differ := sorted(set(credit_of(tables[0])) ^ set(credit_of(own))):
            raise ValueError(
                f"--pool {folder}: only this folder or the first one has {', '.join(differ)}; measure both with the "
                "same --methods and --vary"
            )
    return measured_rows(tables)


def _read(folder: Path) -> pd.DataFrame:
    if not all((folder / name).is_file() for name in ("fidelity.json", "turns.parquet")):
        raise ValueError(f"--pool {folder}: no finished measurement there; name folders that fidelity's --output was")
    return pd.read_parquet(folder / "turns.parquet")

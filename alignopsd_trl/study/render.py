"""Writes ``results.md`` and the figures of a study, from its rows alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from alignopsd_trl.common.files import write_text
from alignopsd_trl.runs.markdown import escaped
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.study.figures import difference_figure, save, sensitivity_figure, sweeps, training_figure
from alignopsd_trl.study.matched import matched
from alignopsd_trl.study.tables import Entry, cost_table, differences_table, entries, reference_entry, results_table

RESULTS = "results.md"
_NOTES = """\
Figures are percent on the panel, from the last checkpoint: mean over seeds ± half the width of Student's 95 % interval
over seeds (none for one seed). **Best** and <u>second</u> by the printed mean; an empty cell had no episodes.
Differences are paired by seed. A star: evaluated with skills in the prompt. The intervals are of the seeds, not of the
panel's tasks, and say nothing about several comparisons at once."""
_COST = """\
Wall seconds per rollout round and phase, without evaluation; the quotient is paired by seed. CPU seconds are those of
the whole first process of a cell, start and evaluation included."""


def render(name: str, rows: pd.DataFrame, output: Path, reference: str = "grpo") -> Path:
    """Writes ``results.md`` and ``figures/`` under ``output``; returns the path of the former."""
    base = reference_entry(rows, reference)
    parts = [f"# {escaped(name)}", _NOTES]
    if _has(rows, "methods"):
        parts += ["## Methods", results_table(rows, "methods"), *_minus(rows, "methods", base)]
    if _has(rows, "ablations"):
        parts += ["## Ablations of AlignOPSD", results_table(rows, "ablations", averages_only=True)]
        parts += _minus(rows, "ablations", base) + _minus(rows, "ablations", reference_entry(rows, "align_opsd"))
    for sweep in sweeps(rows):
        parts += [f"## Sensitivity to {escaped(sweep)}", results_table(rows, f"sweep {sweep}", averages_only=True)]
        parts += _minus(rows, f"sweep {sweep}", base)
    parts += _pictures(rows, output, base)
    for table in ("methods", "ablations"):
        if _has(rows, table) and "seconds" in rows:
            parts += [f"## Cost: {table}", _COST, cost_table(rows, table, base)]
    parts += ["## Protocol", "\n".join(f"- {escaped(line)}" for line in matched(rows)), *_broken(rows)]
    output.mkdir(parents=True, exist_ok=True)
    path = output / RESULTS
    with owned("study", path):
        write_text(path, "\n\n".join(parts) + "\n")
    return path


def _has(rows: pd.DataFrame, table: str) -> bool:
    return bool(entries(rows, table))


def _minus(rows: pd.DataFrame, table: str, reference: Entry | None) -> list[str]:
    return [] if reference is None else [differences_table(rows, table, reference)]


def _pictures(rows: pd.DataFrame, output: Path, base: Entry | None) -> list[str]:
    tables = ("methods", "ablations")
    figures = {f"training_{table}": training_figure(rows, table) for table in tables}
    figures |= {f"differences_{table}": difference_figure(rows, table, base) for table in tables}
    figures["sensitivity"] = sensitivity_figure(rows, base)
    shown = []
    for name, figure in figures.items():
        if figure is not None:
            save(figure, output / "figures" / name)
            shown.append(f"![{name.replace('_', ' ')}](figures/{name}.png)")
    return ["## Figures", *shown] if shown else []


def _broken(rows: pd.DataFrame) -> list[str]:
    broken = rows[rows["status"] == "broken"]
    if broken.empty:
        return []
    lines = [f"{row.environment} {row.label} seed {row.seed}: {row.error}" for row in broken.itertuples()]
    return ["## Broken cells", "\n".join(f"- {escaped(line)}" for line in lines)]

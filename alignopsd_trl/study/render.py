"""Writes ``results.md`` and the figures of a study, from its rows alone, and compares the protocols that they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.progress import escaped
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.study.figures import difference_figure, save, sensitivity_figure, sweeps, training_figure
from alignopsd_trl.study.tables import Entry, differences_table, entries, reference_entry, results_table

RESULTS = "results.md"
_NOTES = """\
Figures are percent on the panel, from the last checkpoint: mean over seeds ± half the width of Student's 95 % interval
over seeds (none for one seed). **Best** and <u>second</u> by the printed mean; an empty cell had no episodes.
Differences are paired by seed. A star: evaluated with skills in the prompt. The intervals are of the seeds, not of the
panel's tasks, and say nothing about several comparisons at once."""


def render(name: str, rows: pd.DataFrame, output: Path, reference: str = "grpo") -> Path:
    """Writes ``results.md`` and ``figures/`` under ``output``; returns the path of the former."""
    base = reference_entry(rows, reference)
    parts = [f"# {escaped(name)}", _NOTES]
    if entries(rows, "methods"):
        parts += ["## Methods", results_table(rows, "methods"), *_minus(rows, "methods", base)]
    if entries(rows, "ablations"):
        parts += ["## Ablations of AlignOPSD", results_table(rows, "ablations", averages_only=True)]
        parts += _minus(rows, "ablations", base) + _minus(rows, "ablations", reference_entry(rows, "align_opsd"))
    for sweep in sweeps(rows):
        parts += [f"## Sensitivity to {escaped(sweep)}", results_table(rows, f"sweep {sweep}", averages_only=True)]
        parts += _minus(rows, f"sweep {sweep}", base)
    parts += _pictures(rows, output, base)
    parts += ["## Protocol", "\n".join(f"- {escaped(line)}" for line in matched(rows)), *_broken(rows)]
    output.mkdir(parents=True, exist_ok=True)
    path = output / RESULTS
    with owned("study", path):
        write_text(path, "\n\n".join(parts) + "\n")
    return path


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


_ALL = {
    "weights": "initial weights",
    "panel_checksum": "panel",
    "code": "code",
    "versions": "versions",
    "machine": "machine",
}


def matched(rows: pd.DataFrame) -> list[str]:
    """Returns one sentence per environment and property: the value that all rows share, or the rows that differ."""
    found = []
    for environment, group in rows[rows["status"] == "finished"].groupby("environment", sort=False):
        facts = [_shared(group, name, title) for name, title in _ALL.items()]
        trained = group[group["updates"].notna()] if "updates" in group else group.head(0)
        if len(trained):
            facts += [_shared(trained, name, name) for name in ("updates", "trajectories")] + [_task_order(trained)]
        facts.append(_protocol(group))
        found += [f"{environment}: {fact}" for fact in facts]
    return found


def _shared(group: pd.DataFrame, name: str, title: str) -> str:
    counts = group[name].value_counts()
    usual: Any = counts.index[0]
    shown = f"{usual:g}" if isinstance(usual, float) else str(usual)
    if len(counts) == 1:
        return f"{title} equal in all {len(group)} rows: {shown}"
    return f"{title} DIFFER: {shown}, but not in {_names(group[group[name] != usual])}"


def _task_order(trained: pd.DataFrame) -> str:
    if trained["task_order"].isna().any():
        return "task order not recorded in " + _names(trained[trained["task_order"].isna()])
    differing = [seed for seed, group in trained.groupby("seed") if group["task_order"].nunique() > 1]
    if differing:
        return f"task order DIFFERS between methods for seeds {differing}"
    return "task order equal between methods for every seed"


def _protocol(group: pd.DataFrame) -> str:
    configs = [json.loads(text) for text in group["protocol"]]
    names = sorted({name for config in configs for name in config})
    differing = [name for name in names if len({json.dumps(config.get(name)) for config in configs}) > 1]
    if differing:
        return f"settings beside the method's own DIFFER: {', '.join(differing)}"
    return f"all {len(names)} settings beside the method's own are equal"


def _names(group: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(f"{label} seed {seed}" for label, seed in zip(group.label, group.seed, strict=True)))

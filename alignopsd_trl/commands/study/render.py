"""Writes ``results.md`` and the figures of a study, as PNG and SVG, from its rows alone: training curves, their
differences to a reference paired by seed, sensitivity. Compares the protocols that the rows hold."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.commands.analysis.drawing import SMOOTH, Axes, Figure, MaxNLocator, band, label, panels, rc_context
from alignopsd_trl.commands.study.tables import (
    Column,
    Entry,
    columns,
    differences_table,
    entries,
    per_seed,
    reference_entry,
    results_table,
)
from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.progress import escaped
from alignopsd_trl.common.statistics import Mean, mean, paired
from alignopsd_trl.runs.owned import owned

TITLES = {
    "max_sources": "retrieval top-K",
    "similarity_threshold": r"threshold $\gamma_H$",
    "credit_temperature": r"credit temperature $T$",
}
ACROSS = 4
"""Number of axes in one row of the figure of differences."""


def training_figure(rows: pd.DataFrame, table: str, kind: str = "curve") -> Figure | None:
    """Draws one axis per environment: success of rollouts, or with ``kind="validation"`` of evaluations in training,
    smoothed over `SMOOTH` of them; lines are means over seeds, bands their 95 % intervals. `None` without such rows."""
    lines = [line for line in entries(rows, table) if trained(line, kind)]
    if not lines:
        return None
    environments = list(dict.fromkeys(name for line in lines for name in line.rows))
    figure, axes = panels(len(environments), width=4.8)
    for axis, environment in zip(axes, environments, strict=True):
        for number, line in enumerate(lines):
            own = line.method == "align_opsd" and line.settings == "{}"
            width, dashes = 2.0 if own else 1.1, "-" if number < 10 else "--"
            color = "black" if own else f"C{number % 10}"
            draw(axis, curves(line, environment, kind), color, 0.1, label=line.label, linewidth=width, linestyle=dashes)
        label(axis, environment, "update", f"{'rollout' if kind == 'curve' else kind} success (%)")
    axes[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def trained(line: Entry, kind: str = "curve") -> bool:
    return any(isinstance(row.get(f"{kind}_update"), list) for seeds in line.rows.values() for row in seeds.values())


def curves(line: Entry, environment: str, kind: str = "curve") -> pd.DataFrame:
    """Returns one column per seed: success in percent by update, as its moving average over `SMOOTH` measurements."""
    rows = [one for one in line.rows.get(environment, {}).items() if isinstance(one[1].get(f"{kind}_update"), list)]
    found = {seed: 100 * pd.Series(row[f"{kind}_success"], row[f"{kind}_update"], float) for seed, row in rows}
    return pd.DataFrame({seed: values.ewm(span=SMOOTH).mean() for seed, values in found.items()})


def draw(axis: Axes, seeds: pd.DataFrame, color: Any, alpha: float, **style: Any) -> None:
    """Draws the mean over seeds of the updates that all seeds have, with a band of the 95 % interval."""
    seeds = seeds.dropna()
    if len(seeds):
        center, half = _ends([mean(values) for values in seeds.to_numpy().tolist()])
        axis.plot(seeds.index, center, color=color, **style)
        band(axis, seeds.index, center - half, center + half, color, alpha)


def _ends(means: Sequence[Mean]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one.value for one in means]), np.nan_to_num([one.half for one in means])


def difference_figure(rows: pd.DataFrame, table: str, reference: Entry | None) -> Figure | None:
    """Draws one axis per environment and trained line: success of the rollouts, smoothed as in the training curves,
    minus the reference's with the same seed. Grey: seeds; black: their mean with its 95 % interval; above it the
    differences on the panel. `None` without a reference or another trained line."""
    if reference is None or not trained(reference):
        return None
    own = (reference.method, reference.settings)
    lines = [line for line in entries(rows, table) if trained(line) and (line.method, line.settings) != own]
    heads: dict[str, list[Column]] = defaultdict(list)
    for head in columns(rows, averages_only=True):
        heads[head.environment].append(head)
    pairs = [(name, line, curves(line, name) - curves(reference, name)) for name in heads for line in lines]
    drawn = [(name, line, both) for name, line, one in pairs if len(both := one.dropna(axis="columns", how="all"))]
    if not drawn:
        return None
    figure, axes = panels(len(drawn), 2.6, columns=min(ACROSS, len(lines)), sharey="row")
    for axis, (name, line, seeds) in zip(axes, drawn, strict=True):
        common = seeds.dropna()
        axis.plot(common.index, common, color="0.7", linewidth=0.7)
        axis.axhline(0.0, color="C3", linewidth=0.9, linestyle="--")
        draw(axis, common, "black", 0.15, linewidth=1.6)
        label(axis, "", "update", f"rollout success\nminus {reference.label} (points)")
        axis.label_outer()
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        told = [(head.title, paired(per_seed(line, head), per_seed(reference, head))) for head in heads[name]]
        shown = ", ".join(f"{title}: none" if found is None else f"{title} {found:+.1f}" for title, found in told)
        axis.set_title(f"{name}: {line.label}\n{shown}", fontsize=8)
    return figure


def sweeps(rows: pd.DataFrame) -> list[str]:
    tables = (place["table"] for text in rows["places"] for place in json.loads(text))
    return list(dict.fromkeys(name.removeprefix("sweep ") for name in tables if name.startswith("sweep ")))


def sensitivity_figure(rows: pd.DataFrame, reference: Entry | None = None) -> Figure | None:
    """Draws one axis per environment and swept field: averages over the panel, means over seeds with 95 % intervals;
    dashed: the reference. `None` without sweeps."""
    names = sweeps(rows)
    if not names:
        return None
    heads = columns(rows, averages_only=True)
    environments = list(dict.fromkeys(head.environment for head in heads))
    figure, axes = panels(len(environments) * len(names), columns=len(names))
    for axis, (environment, name) in zip(axes, product(environments, names), strict=True):
        for number, head in enumerate(head for head in heads if head.environment == environment):
            _draw_sweep(axis, entries(rows, f"sweep {name}"), head, f"C{number}", reference)
        label(axis, environment, TITLES.get(name, name), "panel (%)", legend=name == names[-1])
    return figure


def _draw_sweep(axis: Axes, lines: list[Entry], head: Column, color: str, reference: Entry | None) -> None:
    found = [(line.value, mean(list(values.values()))) for line in lines if (values := per_seed(line, head))]
    if not found:
        return
    points, means = zip(*found, strict=True)
    axis.errorbar(points, *_ends(means), color=color, marker="o", capsize=3, label=head.title)
    axis.set_xticks(points)
    if reference is not None and (values := per_seed(reference, head)):
        level = mean(list(values.values())).value
        axis.axhline(level, color=color, linestyle="--", linewidth=0.9, label=f"{head.title} of {reference.label}")


def save(figure: Figure, path: Path) -> None:
    """Writes ``path`` as .png and .svg; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = (path.with_suffix(kind) for kind in (".png", ".svg"))
    with owned("study", *drawn), rc_context({"svg.hashsalt": "study", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".png"), dpi=160, bbox_inches="tight", metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), bbox_inches="tight", metadata={"Date": None})


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
    places = (*tables, *(f"sweep {name}" for name in sweeps(rows)))
    figures |= {f"validation_{one.removeprefix('sweep ')}": training_figure(rows, one, "validation") for one in places}
    figures |= {f"differences_{table}": difference_figure(rows, table, base) for table in tables}
    figures["sensitivity"] = sensitivity_figure(rows, base)
    shown = []
    for name, figure in figures.items():
        if figure is not None:
            save(figure, output / "figures" / name)
            shown.append(f"![{name.replace('_', ' ')}](figures/{name}.png)")
    return ["## Figures", *shown] if shown else []


def _broken(rows: pd.DataFrame) -> list[str]:
    broken = rows[rows["status"] == "broken"].itertuples()
    lines = [f"- {escaped(f'{row.environment} {row.label} seed {row.seed}: {row.error}')}" for row in broken]
    return ["## Broken cells", "\n".join(lines)] if lines else []


_ALL = {"weights": "initial weights", "panel_checksum": "panel"}
_ALL |= {name: name for name in ("code", "versions", "machine")}


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

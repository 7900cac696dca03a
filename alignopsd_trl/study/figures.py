"""Draws the figures of a study as PNG and SVG, from its rows alone: training curves, their differences to a reference
paired by seed, and sensitivity."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.analysis.drawing import SMOOTH, Axes, Figure, MaxNLocator, band, label, panels, rc_context
from alignopsd_trl.common.statistics import Mean, mean, paired
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.study.tables import Column, Entry, columns, entries, per_seed

TITLES = {
    "max_sources": "retrieval top-K",
    "similarity_threshold": r"threshold $\gamma_H$",
    "credit_temperature": r"credit temperature $T$",
}
ACROSS = 4
"""Number of axes in one row of the figure of differences."""


def training_figure(rows: pd.DataFrame, table: str) -> Figure | None:
    """Draws one axis per environment: the rollouts' success, smoothed over `SMOOTH` updates; lines are means over
    seeds, bands their 95 % intervals. `None` without trained rows."""
    lines = [line for line in entries(rows, table) if trained(line)]
    if not lines:
        return None
    environments = list(dict.fromkeys(name for line in lines for name in line.rows))
    figure, axes = panels(len(environments), width=4.8)
    for axis, environment in zip(axes, environments, strict=True):
        for number, line in enumerate(lines):
            own = line.method == "align_opsd" and line.settings == "{}"
            width, dashes = 2.0 if own else 1.1, "-" if number < 10 else "--"
            color = "black" if own else f"C{number % 10}"
            draw(axis, curves(line, environment), color, 0.1, label=line.label, linewidth=width, linestyle=dashes)
        label(axis, environment, "update", "rollout success (%)")
    axes[-1].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def trained(line: Entry) -> bool:
    """Returns whether any of the line's rows has a training curve."""
    return any(isinstance(row.get("curve_update"), list) for seeds in line.rows.values() for row in seeds.values())


def curves(line: Entry, environment: str) -> pd.DataFrame:
    """Returns one column per seed: success in percent by update, as its moving average over `SMOOTH` updates."""
    rows = line.rows.get(environment, {}).items()
    found = {seed: 100 * pd.Series(row["curve_success"], row["curve_update"], float) for seed, row in rows}
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
    """Returns the names of the swept fields, in the study's order."""
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

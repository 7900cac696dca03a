"""Draws the figure of differences to a reference, paired by seed, with one axis per method."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from alignopsd_trl.analysis.drawing import Figure, MaxNLocator, label, panels
from alignopsd_trl.statistics import paired
from alignopsd_trl.study.figures import curves, draw, trained
from alignopsd_trl.study.tables import Column, Entry, columns, entries, per_seed

ACROSS = 4
"""Number of axes in one row of the figure."""


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
        told = ", ".join(_told(line, reference, head) for head in heads[name])
        axis.set_title(f"{name}: {line.label}\n{told}", fontsize=8)
    return figure


def _told(line: Entry, reference: Entry, head: Column) -> str:
    """Returns a label with the difference in one average over the panel (evaluation set)."""
    found = paired(per_seed(line, head), per_seed(reference, head))
    return f"{head.title}: none" if found is None else f"{head.title} {found:+.1f}"

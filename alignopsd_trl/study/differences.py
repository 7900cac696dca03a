"""The figure of differences to a reference, paired by seed: a panel a method."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pandas as pd

from alignopsd_trl.statistics import mean, paired
from alignopsd_trl.study.figures import Axes, Figure, band, common_updates, grid, smoothed, trained
from alignopsd_trl.study.tables import Column, Entry, columns, entries, per_seed

ACROSS = 4
"""Panels side by side."""


def difference_figure(rows: pd.DataFrame, table: str, reference: Entry | None) -> Figure | None:
    """For each environment a panel a trained line: success of the rollouts, smoothed as in the training curves, minus
    the reference's with the same seed. Grey: seeds; black: their mean with its 95 % interval; above it the differences
    on the panel. `None` without a reference or another trained line."""
    if reference is None or not trained(reference):
        return None
    own = (reference.method, reference.settings)
    lines = [line for line in entries(rows, table) if trained(line) and (line.method, line.settings) != own]
    heads: dict[str, list[Column]] = defaultdict(list)
    for head in columns(rows, averages_only=True):
        heads[head.environment].append(head)
    drawn = [(name, line) for name in heads for line in lines if _pairs(line, reference, name)]
    if not drawn:
        return None
    across = min(ACROSS, len(lines))
    figure, axes = grid(math.ceil(len(drawn) / across), across, 2.6, sharey="row")
    for axis, (name, line) in zip(axes.flat, drawn, strict=False):
        _draw(axis, line, reference, name)
        told = ", ".join(_told(line, reference, head) for head in heads[name])
        axis.set_title(f"{name}: {line.label}\n{told}", fontsize=8)
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    for row in axes:
        row[0].set_ylabel(f"rollout success\nminus {reference.label} (points)")
    figure.tight_layout()
    return figure


def _pairs(line: Entry, reference: Entry, environment: str) -> list[int]:
    """Seeds that both have."""
    return sorted(set(line.rows.get(environment, {})) & set(reference.rows.get(environment, {})))


def _draw(axis: Axes, line: Entry, reference: Entry, environment: str) -> None:
    curves = []
    for seed in _pairs(line, reference, environment):
        own, other = (smoothed(entry.rows[environment][seed], "success") for entry in (line, reference))
        curves.append({update: own[update] - other[update] for update in own.keys() & other.keys()})
    updates = common_updates(curves)
    for curve in curves:
        axis.plot(updates, [curve[update] for update in updates], color="0.7", linewidth=0.7)
    means = [mean([curve[update] for curve in curves]) for update in updates]
    axis.axhline(0.0, color="C3", linewidth=0.9, linestyle="--")
    axis.plot(updates, [one.value for one in means], color="black", linewidth=1.6)
    axis.fill_between(updates, *band(means), color="black", alpha=0.15, linewidth=0)
    axis.set_xlabel("update")
    ticks: Any = axis.xaxis.get_major_locator()
    ticks.set_params(integer=True)


def _told(line: Entry, reference: Entry, head: Column) -> str:
    """The difference in one average over the panel."""
    found = paired(per_seed(line, head), per_seed(reference, head))
    return f"{head.title}: none" if found is None else f"{head.title} {found:+.1f}"

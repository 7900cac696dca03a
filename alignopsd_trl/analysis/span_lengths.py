"""Measures the number of turns in a functional decision (the paper's appendix "Credit Assignment")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from alignopsd_trl.analysis.drawing import BLUE, label, panels
from alignopsd_trl.analysis.finding import Finding
from alignopsd_trl.analysis.loading import EPISODE, SPANS, Records, distinct, name_of, turns_of

REASONS = {"": "first of a rollout", "threshold": "shift", "guided": "too long, shift", "forced": "too long, length"}


def spans(run: Records | Sequence[Records], steps: Sequence[int] | None = None) -> Finding:
    """Counts lengths of decision spans by task category, and reasons for their beginnings; one subplot per run.

    Args:
        run: one or several runs, such as one per benchmark.
        steps (*optional*): only these rollout steps.

    Raises:
        ValueError: if a run recorded no spans.
    """
    runs = list(run) if isinstance(run, list | tuple) else [run]
    found = {name: span_table(one, steps) for name, one in zip(distinct(map(name_of, runs)), runs, strict=True)}
    table = pd.concat([lengths.assign(run=name) for name, lengths in found.items()], ignore_index=True)
    numbers = {name: _numbers(lengths) for name, lengths in found.items()}
    counts: Any = table.groupby(["run", "category", "length"]).size()
    lengths = counts.rename("spans").reset_index()
    figure, axes = panels(len(found), columns=3)
    for axis, (name, one) in zip(axes, found.items(), strict=True):
        axis.set_xlim(0.4, table.length.max() + 0.6)
        draw_lengths(axis, one, f"{name}: {len(one):,} spans")
    return Finding("spans", numbers, {"lengths": lengths, "spans": table}, figure)


def span_table(run: Records, steps: Sequence[int] | None = None) -> pd.DataFrame:
    """Returns one row per span: its place, its ``length`` in turns and the reason for its beginning (``cut``)."""
    frame = turns_of(run, SPANS, steps)
    groups: Any = frame[frame.credit_span.notna()].groupby([*EPISODE, "credit_span"], sort=True)
    table = groups.agg(
        category=("category", "first"), first_turn=("turn", "min"), length=("turn", "size"), cut=("credit_cut", "first")
    )
    return table.reset_index().rename(columns={"credit_span": "span"})


def _numbers(table: pd.DataFrame) -> dict[str, Any]:
    named = {REASONS.get(cut, cut): int(count) for cut, count in table.cut.fillna("").value_counts().items()}
    means: Any = table.groupby("category").length.mean()
    return {
        "spans": len(table),
        "mean length (turns)": float(table.length.mean()),
        "median length (turns)": float(table.length.median()),
        "spans a rollout": len(table) / table.groupby(EPISODE).ngroups,
        "mean length by category": {str(k): float(v) for k, v in means.items()},
        "spans by why they begin": named,
    }


def draw_lengths(axis: Any, spans: pd.DataFrame, title: str) -> None:
    """Draws the histogram of a table of `span_table`."""
    shares = 100 * spans.length.value_counts(normalize=True).sort_index()
    axis.bar(shares.index, shares, color=BLUE, width=0.8)
    axis.axvline(spans.length.mean(), color="black", linewidth=1.2, label=f"mean {spans.length.mean():.2f}")
    label(axis, title, "turns in a span", "share of spans (%)", legend=True)

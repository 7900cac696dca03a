"""Shows the method on one task: matches, spans on the divergence curve, gaps before and after; lengths of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.commands.analysis.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, AnalysisResult, label, panels
from alignopsd_trl.commands.analysis.loading import EPISODE, SPANS, Records, name_of, results_of, turns_of
from alignopsd_trl.commands.analysis.thinking_audit import COLUMNS, TaskPairs, encoder_of, task_pairs
from alignopsd_trl.common.progress import distinct
from alignopsd_trl.encoder import Encoder

_GAPS = ["credit_identity_gap", "credit_rectified_gap", "credit_divergence", "credit_divergence_counts", "credit_alpha"]


def mechanism(
    run: Records,
    step: int | None = None,
    task: str | None = None,
    rollout: str | None = None,
    encoder: str | Encoder | None = None,
) -> AnalysisResult:
    """Draws five subplots: (a) match matrix of a task and mixing of its turns, (b) spans of one rollout on its
    divergence curve, with local and rectified gaps, (c) span lengths, (d) gaps before and after rectification, (e)
    changes of gaps by rectification.

    (a) and (b) show one task and one rollout, the others the whole run.

    Args:
        run: a run of AlignOPSD with matches and spans.
        step, task, rollout (*optional*): the default is the rollout with most spans, then most scored turns.
        encoder (*optional*): the run's own encoder by default.

    Raises:
        ValueError: if the run lacks columns for the subplots, or does not have the task or rollout.
    """
    frame = turns_of(run, [*COLUMNS, *SPANS, *_GAPS], welcome=["credit_teacher_action"])
    frame = frame[frame.credit_teacher_thinking.notna()]
    shown = _chosen(frame, step, task, rollout, name_of(run))
    at = (frame.step == shown.step.iloc[0]) & (frame.task == shown.task.iloc[0])
    pairs = next(iter(task_pairs(run, frame[at], encoder_of(run, encoder))))
    lengths, threshold = span_table(frame), _threshold(run, int(shown.step.iloc[0]))
    gaps = frame[frame.credit_rectified_gap.notna()][["step", "task", "rollout", "turn", *_GAPS[:2]]]
    moved = (gaps.credit_rectified_gap - gaps.credit_identity_gap).abs()
    columns = ["turn", "action", *_GAPS, *SPANS]
    tables = {"matches": _matches(pairs), "rollout": shown[columns], "gaps": gaps, "spans": lengths}
    numbers = {
        **{name: str(shown[name].iloc[0]) for name in ("step", "task", "rollout")},
        "pairs used in this task": len(pairs.used),
        "boundary threshold of this step": threshold,
        "mean span length (turns)": float(lengths.length.mean()),
        "scored turns": len(gaps),
        "turns whose gap changed": float((moved > 0).mean()),
        "absolute change, mean (nats)": float(moved.mean()),
        "absolute change, 95th percentile (nats)": float(moved.quantile(0.95)),
    }
    figure, axes = panels(5, width=4.0, height=3.4, columns=3)
    _draw_matches(figure, axes[0], pairs)
    _draw_spans(axes[1], shown, threshold)
    draw_lengths(axes[2], lengths, "(c) span lengths")
    axes[3].plot(gaps.credit_identity_gap, gaps.credit_rectified_gap, "o", ms=2, alpha=0.3, color=PURPLE)
    ends = [gaps.credit_identity_gap.min(), gaps.credit_identity_gap.max()]
    axes[3].plot(ends, ends, color=GREY, linewidth=1, label="unchanged")
    label(axes[3], "(d) gap of each scored turn", "identity (nats a token)", "rectified (nats a token)", legend=True)
    axes[4].hist(moved[moved > 0], bins=40, color=PURPLE)
    axes[4].set_yscale("log")
    label(axes[4], f"(e) its absolute change, where not 0 ({(moved > 0).mean():.0%})", "nats a token", "turns")
    return AnalysisResult("mechanism", numbers, tables, figure)


def _chosen(frame: pd.DataFrame, step: int | None, task: str | None, rollout: str | None, run: str) -> pd.DataFrame:
    for name, value in (("step", step), ("task", task), ("rollout", rollout)):
        if value is not None:
            kept = frame[frame[name].astype(str) == str(value)]
            if kept.empty:
                there = ", ".join(map(str, frame[name].unique()[:8]))
                raise ValueError(
                    f"{name} {value!r} isn't in {run}, or has no reasoning trace of the teacher there; try: {there}"
                )
            frame = kept
    frame = frame.assign(scored=frame.credit_rectified_gap.notna())
    rollouts: Any = frame.groupby(EPISODE)
    table = rollouts.agg(scored=("scored", "any"), spans=("credit_span", "nunique"), turns=("turn", "size"))
    return rollouts.get_group(table.sort_values([*table], ascending=False, kind="stable").index[0])


def _threshold(run: Records, step: int) -> float | None:
    """Returns a step's boundary threshold from the log, whose line k belongs to the rollout of step k - 1."""
    lines = (line for line in results_of(run).get("history") or [] if line.get("step") == step + 1)
    return next((line["spans/threshold"] for line in lines if "spans/threshold" in line), None)


def _matches(pairs: TaskPairs) -> pd.DataFrame:
    names = (pairs.turns.rollout + " turn " + pairs.turns.turn.astype(str)).to_numpy()
    source, target = pairs.used.T
    said = pairs.turns.get("credit_teacher_action")
    columns = {
        "source": names[source],
        "target": names[target],
        "source_action": None if said is None else said.to_numpy()[source],
        "target_action": pairs.turns.action.to_numpy()[target],
        "similarity": pairs.similarity[source, target],
        "weight": pairs.weights,
        "alpha": pairs.turns.credit_alpha.to_numpy()[target],
    }
    return pd.DataFrame(columns)


def _draw_matches(figure: Any, axis: Any, pairs: TaskPairs) -> None:
    image = axis.imshow(np.where(pairs.eligible, pairs.similarity, np.nan), cmap="Greys", vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axis, shrink=0.7)
    bar.set_label("cosine", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    alpha = pairs.turns.credit_alpha.fillna(0).to_numpy()[pairs.used[:, 1]]
    area = (3 + 40 * pairs.weights * alpha) * min(1.0, 40 / len(pairs.turns))
    axis.scatter(pairs.used[:, 1], pairs.used[:, 0], s=area, color=ORANGE, label="used")
    for edge in np.flatnonzero(pairs.turns.rollout.to_numpy()[1:] != pairs.turns.rollout.to_numpy()[:-1]) + 0.5:
        axis.axhline(edge, color=BLUE, linewidth=0.5)
        axis.axvline(edge, color=BLUE, linewidth=0.5)
    label(axis, "(a) matches; size: weight x alpha", "target: student's turn", "source: sibling's turn")
    axis.grid(False)


def _draw_spans(axis: Any, shown: pd.DataFrame, threshold: float | None) -> None:
    turn = shown.turn.to_numpy()
    counts = shown.credit_divergence_counts.fillna(False).astype(bool)
    axis.plot(turn, shown.credit_divergence.where(counts), "o-", ms=3, color=BLUE, label="divergence (bits)")
    if threshold is not None:
        axis.axhline(threshold, color=BLUE, linestyle=":", linewidth=1, label="threshold")
    for number, (_, part) in enumerate(shown.groupby("credit_span")):
        axis.axvspan(part.turn.min() - 0.5, part.turn.max() + 0.5, color=GREY, alpha=0.12 + 0.14 * (number % 2))
    other = axis.twinx()
    other.plot(turn, shown.credit_identity_gap, "s--", ms=3, color=GREEN, label="identity gap")
    other.plot(turn, shown.credit_rectified_gap, "^-", ms=3, color=ORANGE, label="rectified gap")
    other.set_ylabel("gap (nats a token)", fontsize=8)
    other.tick_params(labelsize=7)
    label(axis, f"(b) spans of rollout {shown.rollout.iloc[0]}", "turn", "divergence (bits)")
    handles = [one for part in (axis, other) for one in part.get_legend_handles_labels()[0]]
    axis.legend(handles=handles, fontsize=6, frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))


# Lengths of spans (the paper's appendix "Credit Assignment")

REASONS = {"": "first of a rollout", "threshold": "shift", "guided": "too long, shift", "forced": "too long, length"}


def spans(run: Records | Sequence[Records], steps: Sequence[int] | None = None) -> AnalysisResult:
    """Counts lengths of decision spans by task category, and reasons for their beginnings; one subplot for each run,
    such as one per benchmark."""
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
    return AnalysisResult("spans", numbers, {"lengths": lengths, "spans": table}, figure)


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


def draw_lengths(axis: Any, table: pd.DataFrame, title: str) -> None:
    shares = 100 * table.length.value_counts(normalize=True).sort_index()
    axis.bar(shares.index, shares, color=BLUE, width=0.8)
    axis.axvline(table.length.mean(), color="black", linewidth=1.2, label=f"mean {table.length.mean():.2f}")
    label(axis, title, "turns in a span", "share of spans (%)", legend=True)

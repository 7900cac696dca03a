"""Draws reward, gaps, spans and weights over training, for runs side by side such as GRPO and AlignOPSD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.commands.analysis.drawing import SMOOTH, AnalysisResult, curve, label, panels
from alignopsd_trl.commands.analysis.loading import EPISODE, Records, name_of, setting, turns_of
from alignopsd_trl.common.progress import distinct
from alignopsd_trl.common.statistics import clustered_ratio

_MEASURED = [
    f"credit_{name}" for name in ("tokens", "identity_gap", "rectified_gap", "weight", "span", "sources", "rho")
]
PANELS = {
    "success": ("success of the step's episodes", "%"),
    "score": ("score of the step's episodes", "%"),
    "reward": ("terminal reward, mean", "reward"),
    "turns": ("length of an episode", "turns"),
    "identity_gap": ("identity gap", "nats a token"),
    "rectified_gap": ("rectified gap", "nats a token"),
    "correction": ("rectified − identity gap", "nats a token"),
    "turns_a_span": ("turns a span", "turns"),
    "weight_std": ("spread of turn weights W", "standard deviation"),
    "matched": ("turns with a match, where asked", "%"),
}
"""Column of the table -> title and unit. A column has a subplot where a run measured it."""


def dynamics(runs: Records | Sequence[Records]) -> AnalysisResult:
    """Draws each quantity that a run's method has by rollout step, from records, with 95 % intervals over a step's
    tasks. From 14 steps on lines and intervals are exponential moving averages over 7, and measurements are faint."""
    several: list[Any] = list(runs) if isinstance(runs, list | tuple) else [runs]
    names = distinct(" ".join(dict.fromkeys([name_of(run), setting(run, "method", "")])).strip() for run in several)
    tables = [by_step(one).assign(run=name) for name, one in zip(names, several, strict=True)]
    table = pd.concat(tables, ignore_index=True)
    numbers = {name: _ends(table[table.run == name]) for name in names}
    return AnalysisResult("dynamics", numbers, {"steps": table}, _drawn(table, names))


def by_step(run: Records) -> pd.DataFrame:
    """Returns one row per rollout step, with the run's columns of `PANELS` and the ends of their intervals,
    ``NAME_low`` and ``NAME_high`` (95 %, tasks resampled; NaN for few tasks and for a standard deviation)."""
    frame = turns_of(run, welcome=_MEASURED)
    frame = frame.drop(columns=[name for name in _MEASURED if name in frame and frame[name].isna().all()])
    table = pd.concat([_share(name, *parts) for name, parts in _parts(frame).items()], axis=1)
    if "credit_weight" in frame:
        table["weight_std"] = frame.groupby("step").credit_weight.std(ddof=0)
    return table.reset_index()


def _parts(frame: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Returns each quantity's numerator and denominator, as sums by step and task."""

    def total(values: pd.Series, of: pd.DataFrame = frame) -> pd.Series:
        return values.astype(float).groupby([of.step, of.task]).sum()

    episodes = frame.drop_duplicates(EPISODE)
    count = total(episodes.reward.notna(), episodes)
    parts = {
        "success": (100 * total(episodes.won.astype(float), episodes), total(episodes.won.notna(), episodes)),
        "score": (100 * total(episodes.score, episodes), total(episodes.score.notna(), episodes)),
        "reward": (total(episodes.reward, episodes), count),
        "turns": (total(frame.turn.notna()), total(episodes.turn.notna(), episodes)),
    }
    if "credit_rectified_gap" in frame:
        scored = frame[frame.credit_rectified_gap.notna() & (frame.credit_tokens > 0)]
        tokens = total(scored.credit_tokens, scored)
        for name in ("identity_gap", "rectified_gap"):
            parts[name] = total(scored[f"credit_{name}"] * scored.credit_tokens, scored), tokens
        parts["correction"] = parts["rectified_gap"][0] - parts["identity_gap"][0], tokens
    if "credit_span" in frame:
        known = frame[frame.credit_span.notna()]
        spans = known.drop_duplicates([*EPISODE, "credit_span"])
        parts["turns_a_span"] = (total(known.turn.notna(), known), total(spans.turn.notna(), spans))
    if "credit_sources" in frame:
        asked = frame[frame.credit_rho.notna()] if "credit_rho" in frame else frame
        matched = asked.credit_sources.str.len() > 0
        parts["matched"] = (100 * total(matched, asked), total(asked.turn.notna(), asked))
    return parts


def _share(name: str, top: pd.Series, bottom: pd.Series) -> pd.DataFrame:
    """Returns the ratio of the sums of each step, and its interval over the step's tasks."""
    rows = {step: clustered_ratio(top[step], part) or [np.nan] * 3 for step, part in bottom.groupby(level="step")}
    columns = [name, f"{name}_low", f"{name}_high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("step")


def _ends(table: pd.DataFrame) -> dict[str, Any]:
    """Returns the first and last values of each quantity, as means of up to `SMOOTH` steps."""
    found = {}
    for name in PANELS:
        known = table[name].dropna() if name in table else None
        if known is not None and len(known):
            edge = min(SMOOTH, max(len(known) // 2, 1))
            found[name] = {"first": float(known.iloc[:edge].mean()), "last": float(known.iloc[-edge:].mean())}
    return {"steps": len(table), **found}


def _drawn(table: pd.DataFrame, names: list[str]) -> Any:
    there = [name for name in PANELS if name in table and table[name].notna().any()]
    figure, axes = panels(len(there), columns=4, width=3.2, height=2.5)
    for axis, quantity in zip(axes, there, strict=True):
        for number, name in enumerate(names):
            part = table[(table.run == name)].dropna(subset=[quantity])
            if len(part):
                ends = [part.get(f"{quantity}_{end}") for end in ("low", "high")]
                curve(axis, part.step, part[quantity], number, name, None if ends[0] is None else ends)
        title, unit = PANELS[quantity]
        label(axis, title, "rollout step", unit)
    if len(names) > 1:
        lines = axes[0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return figure

"""What changes over training: reward, gaps, spans, weights; runs side by side, such as GRPO and AlignOPSD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from alignopsd_trl.analysis.drawing import SMOOTH, curve, label, panels
from alignopsd_trl.analysis.finding import Finding
from alignopsd_trl.analysis.loading import EPISODE, name_of, setting, turns_of

if TYPE_CHECKING:
    from alignopsd_trl.analysis.loading import Records

_MEASURED = [
    "credit_tokens",
    "credit_identity_gap",
    "credit_rectified_gap",
    "credit_weight",
    "credit_span",
    "credit_sources",
    "credit_rho",
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
"""Column of the table to title and unit; a panel is there where a run measured it."""


def dynamics(runs: Records | Sequence[Records]) -> Finding:
    """Per rollout step, from records; from 14 steps on an exponential moving average over 7, the measurements faint.

    Args:
        runs: one or several of any method; what a method doesn't have is absent from its line.
    """
    runs = list(runs) if isinstance(runs, list | tuple) else [runs]
    names = _names(runs)
    table = pd.concat([by_step(one).assign(run=name) for name, one in zip(names, runs, strict=True)], ignore_index=True)
    numbers = {name: _ends(table[table.run == name]) for name in names}
    return Finding("dynamics", numbers, {"steps": table}, _drawn(table, names))


def _names(runs: list[Records]) -> list[str]:
    names = [" ".join(dict.fromkeys([name_of(run), str(setting(run, "method", ""))])).strip() for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names, 1)]


def by_step(run: Records) -> pd.DataFrame:
    """One row a rollout step, with the columns of `PANELS` that the run has."""
    frame = turns_of(run, welcome=_MEASURED)
    frame = frame.drop(columns=[name for name in _MEASURED if name in frame and frame[name].isna().all()])
    episodes = frame.drop_duplicates(EPISODE).groupby("step")
    table = pd.DataFrame(
        {
            "success": 100 * episodes.won.apply(_mean),
            "score": 100 * episodes.score.apply(_mean),
            "reward": episodes.reward.mean(),
            "turns": frame.groupby("step").size() / episodes.size(),
        }
    )
    steps = frame.groupby("step")
    if "credit_rectified_gap" in frame:
        for name in ("identity_gap", "rectified_gap"):
            table[name] = steps.apply(_token_mean, f"credit_{name}", include_groups=False)
        table["correction"] = table.rectified_gap - table.identity_gap
    if "credit_span" in frame:
        table["turns_a_span"] = steps.credit_span.count() / steps.apply(_span_count, include_groups=False)
    if "credit_weight" in frame:
        table["weight_std"] = steps.credit_weight.std(ddof=0)
    if "credit_sources" in frame:
        asked = frame[frame.credit_rho.notna()] if "credit_rho" in frame else frame
        matched = asked.credit_sources.map(_length) > 0
        table["matched"] = 100 * matched.groupby(asked.step).mean()
    return table.reset_index()


def _mean(values: pd.Series) -> float:
    """NaN where an environment does not say."""
    return float(values.dropna().astype(float).mean())


def _token_mean(turns: pd.DataFrame, name: str) -> float:
    """Mean over the tokens of the turns that were scored."""
    scored = turns[turns[name].notna() & (turns.credit_tokens > 0)]
    return float((scored[name] * scored.credit_tokens).sum() / scored.credit_tokens.sum()) if len(scored) else np.nan


def _span_count(turns: pd.DataFrame) -> int:
    return len(turns[turns.credit_span.notna()].drop_duplicates(["task", "rollout", "credit_span"]))


def _length(value: Any) -> int:
    return 0 if value is None or isinstance(value, float) else len(value)


def _ends(table: pd.DataFrame) -> dict[str, Any]:
    """First and last steps of each quantity, as means of up to `SMOOTH` steps."""
    found = {}
    for name in PANELS:
        known = table[name].dropna() if name in table else []
        if len(known):
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
                curve(axis, part.step, part[quantity], number, name)
        title, unit = PANELS[quantity]
        label(axis, title, "rollout step", unit, legend=quantity == there[0] and len(names) > 1)
    return figure

"""Writes a measurement: figures as JSON, turns as parquet, a picture, a page of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alignopsd_trl.fidelity.measure import Credited
from alignopsd_trl.fidelity.metrics import MEANING, PIVOTAL
from alignopsd_trl.fidelity.tree import Advantages
from alignopsd_trl.statistics import Interval
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "sign_agreement", "lift")
MOST_KINDS = 8


def turn_table(
    credited: Sequence[Credited],
    trajectories: Sequence[Trajectory],
    outcome: Sequence[np.ndarray],
    found: Advantages,
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Makes one record a turn: the turn, its Monte Carlo value, and every variant's credit."""
    owner = {id(turn): one for one in trajectories for turn in one.turns}
    turns = [turn for one in credited for turn in one.batch.turns]
    labels = list(credited[0].credits) if credited else []
    columns = {label: np.concatenate([one.column(label) for one in credited]) for label in labels}
    sides = np.concatenate(outcome) if len(outcome) else []
    records = []
    for row, turn in enumerate(turns):
        one = owner[id(turn)]
        records.append(
            {
                "task": one.task,
                "rollout": one.rollout,
                "turn": turn.number,
                "category": one.category,
                "won": one.won,
                "reward": one.reward,
                "kind": names[row],
                "thinking": turn.thought.thinking,
                "action": turn.action,
                "outcome_advantage": float(sides[row]),
                "a_mc": float(found.advantage[row]),
                "a_mc_error": float(found.error[row]),
                "a_mc_half_0": float(found.halves[0, row]),
                "a_mc_half_1": float(found.halves[1, row]),
                "value_before": float(found.before[row]),
                "value_after": float(found.after[row]),
                "walks": int(found.rollouts[row]),
                **{f"credit {label}": float(column[row]) for label, column in columns.items()},
            }
        )
    return records


def plain(content: Any) -> Any:
    """Converts intervals and numpy numbers for JSON; NaN becomes null."""
    if isinstance(content, Interval):
        return {"value": plain(content.value), "low": plain(content.low), "high": plain(content.high)}
    if isinstance(content, Mapping):
        return {str(name): plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, np.generic):
        content = content.item()
    return None if isinstance(content, float) and not np.isfinite(content) else content


def page(
    facts: Mapping[str, Any],
    figures: Mapping[str, Mapping[str, Interval]],
    kinds: Sequence[Mapping[str, Any]],
) -> str:
    """The page of text (Markdown)."""
    lines = ["# Credit fidelity", "", facts["command"], "", _summary(facts), *_failed(facts), ""]
    if not figures:
        return "\n".join([*lines, "No group differs in its rewards: there is no credit to measure.", ""])
    lines += figure_lines(figures)
    lines += ["", *(f"{name}: {MEANING[name]}." for name in SHOWN)]
    lines += ["'-' where credit is the same on all turns of a trajectory. Intervals: 95 %, resampled tasks.", ""]
    lines += _kind_lines(kinds)
    return "\n".join(lines)


def figure_lines(figures: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """The table of variants, a row each (Markdown)."""
    lines = ["| variant | " + " | ".join(SHOWN) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    rows = (" | ".join(str(row[name]) for name in SHOWN) for row in figures.values())
    return [*lines, *(f"| {label} | {row} |" for label, row in zip(figures, rows, strict=True))]


def _summary(facts: Mapping[str, Any]) -> str:
    won = f"mean reward {facts['reward']:.3g}" if facts["success"] is None else f"{facts['success']:.0%} won"
    return (
        f"{facts['rollouts']} rollouts of {facts['tasks']} tasks, {won}; {facts['turns']} turns, "
        f"{facts['measured_turns']} of them in the {facts['measured_tasks']} groups that differ. {facts['walks']} "
        f"Monte Carlo rollouts ({facts['walked_turns']} turns), median {facts['median_walks']:.0f} through a "
        f"turn's state. "
        f"Reliability of A_MC {_number(facts['reliability'])}; {_number(facts['pivotal'])} of the turns are pivotal "
        f"(|A_MC| above {PIVOTAL:g} standard errors). {_seconds(facts)}."
    )


def _failed(facts: Mapping[str, Any]) -> list[str]:
    if not facts.get("failed_rollouts"):
        return []
    first = facts["first_failure"] or "no prompt fits max_prompt_length"
    return ["", f"Left out: {facts['failed_rollouts']} rollouts that failed; the first: {first}"]


def _seconds(facts: Mapping[str, Any]) -> str:
    total = facts["cpu_seconds"]
    here = facts.get("cpu_seconds_of_this_command", total)
    return f"{total:.0f} CPU seconds" + (f", {here:.0f} of them in this command" if total - here >= 0.5 else "")


def _number(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{value:.2f}"


def _kind_lines(kinds: Sequence[Mapping[str, Any]]) -> list[str]:
    if not kinds:
        return []
    labels = list(kinds[0]["weight"])[:6]
    names = list(dict.fromkeys(row["kind"] for row in kinds))[:MOST_KINDS]
    lines = ["## By kind of decision", "", "Weight: credit over the outcome advantage, 1 for a flat split.", ""]
    head = ["decision", "side", "turns", "tasks", "A_MC", "pivotal", *(f"weight {one}" for one in labels)]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in kinds:
        if row["kind"] in names:
            shown = [row["kind"].replace("|", "\\|"), row["side"], str(row["turns"]), str(row["tasks"])]
            shown += [f"{row['a_mc']:+.2f}", f"{row['pivotal']:.2f}", *(str(row["weight"][one]) for one in labels)]
            lines.append("| " + " | ".join(shown) + " |")
    return [*lines, ""]


def picture(figures: Mapping[str, Mapping[str, Interval]], title: str) -> Figure:
    """One panel a figure, one line a variant: the value and its interval."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib: pip install 'alignopsd-trl[studies]', or --no_pictures"
        ) from error
    style: dict[Any, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
        "svg.hashsalt": "fidelity",
    }
    panels = {
        "r_within": "r with A_MC, within trajectories",
        "r_praised": "above the group",
        "r_blamed": "below the group",
    }
    panels |= {"lift": "lift on pivotal turns"}
    with plt.rc_context(style | {"svg.fonttype": "none"}):
        height = 1.2 + 0.28 * len(figures)
        figure, axes = plt.subplots(1, len(panels), figsize=(12, height), sharey=True, layout="constrained")
        for axis, (name, label) in zip(axes, panels.items(), strict=True):
            _panel(axis, [row[name] for row in figures.values()], 1.0 if name == "lift" else 0.0)
            axis.set(title=label)
        axes[0].set_yticks(range(len(figures)), list(figures))
        axes[0].invert_yaxis()
        figure.suptitle(title)
    return figure


def _panel(axis: Any, values: Sequence[Interval], neutral: float) -> None:
    axis.axvline(neutral, color="0.7", linewidth=1)
    for place, one in enumerate(values):
        if np.isfinite(one.value):
            axis.plot([one.low, one.high], [place, place], color="C0", linewidth=1.5)
            axis.plot(one.value, place, "o", color="C0", markersize=4)
    axis.grid(axis="x", alpha=0.3)

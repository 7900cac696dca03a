"""Writes a measurement's figures (JSON), turns (parquet), picture and page of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alignopsd_trl.measure.measurement import Measurement
from alignopsd_trl.measure.metrics import MEANING, PIVOTAL
from alignopsd_trl.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("r_within", "r_praised", "r_blamed", "spearman", "cosine", "sign_agreement", "lift")
MOST_KINDS = 8


def turn_table(one: Measurement, names: Sequence[str]) -> list[dict[str, Any]]:
    """Makes one record per turn: the turn, its Monte Carlo value and every variant's credit.

    Args:
        names: the kind of each turn's action.
    """
    found = one.found
    columns = {
        "outcome_advantage": one.outcome,
        "a_mc": found.advantage,
        "a_mc_error": found.error,
        "a_mc_half_0": found.halves[0],
        "a_mc_half_1": found.halves[1],
        "value_before": found.before,
        "value_after": found.after,
        "walks": found.rollouts,
    }
    for label in one.credited[0].credits:
        columns[f"credit {label}"] = np.concatenate([part.column(label) for part in one.credited])
    records = []
    for row, ((episode, turn), kind) in enumerate(zip(one.turns_of, names, strict=True)):
        records.append(
            {
                **{name: getattr(episode, name) for name in ("task", "rollout", "category", "won", "reward")},
                **{"turn": turn.number, "kind": kind, "thinking": turn.thought.thinking, "action": turn.action},
                **{name: values[row].item() for name, values in columns.items()},
            }
        )
    return records


def page(
    facts: Mapping[str, Any], figures: Mapping[str, Mapping[str, Interval]], kinds: Sequence[Mapping[str, Any]]
) -> str:
    """Returns the page of text (Markdown)."""
    lines = ["# Credit fidelity", "", facts["command"], "", _summary(facts), *_failed(facts), ""]
    if not figures:
        return "\n".join([*lines, "No group differs in its rewards: there is no credit to measure.", ""])
    lines += figure_lines(figures)
    lines += ["", *(f"{name}: {MEANING[name]}." for name in SHOWN)]
    lines += ["'-' where credit is the same on all turns of a trajectory. Intervals: 95 %, resampled tasks.", ""]
    lines += _kind_lines(kinds)
    return "\n".join(lines)


def figure_lines(figures: Mapping[str, Mapping[str, Interval]]) -> list[str]:
    """Returns a table with one row per variant (Markdown)."""
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


PANELS = {
    "r_within": "r with A_MC, within trajectories",
    "r_praised": "above the group",
    "r_blamed": "below the group",
    "lift": "lift on pivotal turns",
}


def picture(figures: Mapping[str, Mapping[str, Interval]], title: str) -> Figure:
    """Draws one subplot per figure, with one line per variant: the value and its interval."""
    try:
        from alignopsd_trl.analysis.drawing import BLUE, GREY, label, panels
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib: pip install 'alignopsd-trl[studies]', or --no_pictures"
        ) from error
    figure, axes = panels(len(PANELS), width=3.0, height=1.2 + 0.28 * len(figures))
    for axis, (name, words) in zip(axes, PANELS.items(), strict=True):
        axis.axvline(1.0 if name == "lift" else 0.0, color=GREY, linewidth=1)
        for place, one in enumerate(row[name] for row in figures.values()):
            if np.isfinite(one.value):
                axis.plot([one.low, one.high], [place, place], color=BLUE, linewidth=1.5)
                axis.plot(one.value, place, "o", color=BLUE, markersize=4)
        axis.set_yticks(range(len(figures)), list(figures) if axis is axes[0] else [])
        axis.invert_yaxis()
        label(axis, words, "", "")
    figure.suptitle(title)
    return figure

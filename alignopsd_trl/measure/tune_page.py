"""The printed page of `tune`, and its YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alignopsd_trl.measure.batches import Result
from alignopsd_trl.measure.ranking import EVERYTHING, Advice, Standing
from alignopsd_trl.statistics import Interval

COLUMNS = ("r_within", "lift")


def page(title: str, command: str, found: Result, ranking: Sequence[Standing], advice: Advice, value: str) -> str:
    """Returns the page as Markdown."""
    lines = [f"# {title}", "", f"    {command}", "", _summary(found), ""]
    lines += _success(found, value) + _credit(found, ranking) + _teacher(found.teacher)
    return "\n".join([*lines, *advice.reasons, ""])


def _summary(found: Result) -> str:
    facts = found.facts
    skilled = f" and {facts['skilled_episodes']} with the skill in the prompt" if facts["skilled_episodes"] else ""
    differ = f"reliability of A_MC {facts['reliability']:.2f}; " if facts["measured_turns"] else ""
    return (
        f"{facts['tasks']} training tasks, {facts['episodes']} episodes{skilled}; {facts['monte_carlo_rollouts']} "
        f"Monte Carlo rollouts. {facts['measured_turns']} turns of {facts['measured_tasks']} tasks whose siblings' "
        f"rewards differ; {differ}{facts['seconds']:.0f} s, "
        f"{facts['cpu_seconds']:.0f} CPU seconds."
    )


def _success(found: Result, value: str) -> list[str]:
    if not found.success:
        return []
    scale, unit, form = (100, "success in %", ".0f") if value == "success" else (1, "reward", ".2f")
    lines = [f"| {unit} | tasks | without skill | with skill | lift |", "|---|---|---|---|---|"]
    for name, one in found.success.items():
        cells = [_shown(side, scale, form) for side in (one.without, one.skilled, one.lift)]
        lines.append(f"| {name} | {one.tasks} | {' | '.join(cells)} |")
    return [*lines, ""] if EVERYTHING in found.success else []


def _shown(one: Interval, scale: float, form: str) -> str:
    return format(Interval(scale * one.value, scale * one.low, scale * one.high), form)


def _credit(found: Result, ranking: Sequence[Standing]) -> list[str]:
    if not ranking:
        return []
    lines = ["| credit | cosine with A_MC | less GRPO's | r within | lift | |", "|---|---|---|---|---|---|"]
    for one in ranking:
        own = [str(found.figures[one.label][name]) for name in COLUMNS]
        verdict = "" if one.label == "grpo" else one.verdict
        difference = "" if one.label == "grpo" else f"{one.difference:+.2f}"
        lines.append(f"| {one.label} | {one.cosine} | {difference} | {' | '.join(own)} | {verdict} |")
    return [*lines, "", "Intervals: 95 %, resampled tasks; the last column allows for the number of settings.", ""]


def _teacher(agrees: Interval | None) -> list[str]:
    if agrees is None:
        return []
    return [
        f"At pivotal turns the skill makes good actions likelier and bad ones less likely in {agrees:.0%} of cases; "
        "50% is chance.",
        "",
    ]


def yaml_text(recipe: str, page_file: str, settings: dict[str, Any], advice: Advice) -> str:
    """Returns the text of a ``--config`` file."""
    import yaml

    comments = [f"# Written by alignopsd tune {recipe}; figures: {page_file}", *(f"# {one}" for one in advice.reasons)]
    return "\n".join([*comments, yaml.safe_dump(settings, sort_keys=False, default_flow_style=False, width=200)])

"""``alignopsd measure RECIPE``: whether the skill in the prompt lifts the policy, and the settings to train with."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import yaml

from alignopsd_trl.commands.measure.kept import Cache
from alignopsd_trl.commands.measure.measurement import cpu_seconds, groups, playable
from alignopsd_trl.commands.measure.metrics import EVERYTHING, Success, successes
from alignopsd_trl.commands.measure.setup import MeasureSession, prepare
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import plain, write_json, write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.progress import markdown
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.rollout.monte_carlo.tree import outcome
from alignopsd_trl.turns import Trajectory

BATCH = 8  # tasks that are played, and kept for a later command, together

STANDING_TEACHER = {"teacher_model_kind": "base", "num_iterations": 4}
"""Settings under which the teacher keeps the initial weights and each round gets four passes."""
TAUGHT = {"method": "align_opsd", "auxiliary_loss": "distribution", "distribution_coefficient": 10.0}
UNTAUGHT = {"method": "grpo"}
LOW = 0.5  # a teacher's success below which reward is advised: where it was tried one of 18 % led to 19, GRPO to 48


def tune(given: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file."""
    began, used = time.monotonic(), cpu_seconds()
    with setup():
        session = prepare(given, skilled=True)
        rows = session.draw_tasks(min(given.tasks, len(session.tasks)))
        cache = Cache(given.output / "parts", session.identity() | {"tasks": "any number"})
    with closing(session.player.environments):
        played, skilled = _play(session, rows, cache)
    category = {one.task: one.category for one in played}
    success = successes(_by_task(played, given.value), _by_task(skilled, given.value), category, given.value)
    whole = success.get(EVERYTHING) or Success(0, *[Interval(float("nan"))] * 3)
    ceiling = whole.skilled.value if given.value == "success" else math.inf
    rounds = int(given.settings.get("rounds") or 0)
    settings, reason = advise(whole.lift, ceiling, rounds, (given.recipe, str(given.model)))
    found = {
        "command": shown,
        "recipe": given.recipe,
        "tasks": len({one.task for one in played}),
        "episodes": len(played),
        "skilled_episodes": len(skilled),
        "seconds": time.monotonic() - began,
        "cpu_seconds": cpu_seconds() - used,
        "success": success,
        "advice": {"settings": settings, "reason": reason},
    }
    text, tuned = page(found, given.value), given.output / "tuned.yaml"
    asked = {name: value for name, value in given.set.items() if "." not in name}
    if given.model != given.settings["model_name_or_path"]:
        asked["model_name_or_path"] = given.model
    write_json(given.output / "tune.json", found)
    write_text(given.output / "report.md", text)
    write_text(tuned, yaml_text(given.recipe, asked | settings, reason))
    print(text)
    print(f"train with it: alignopsd train {shlex.quote(given.recipe)} --config {shlex.quote(path_as_given(tuned))}")
    return plain(found)


def _play(
    session: MeasureSession, rows: Sequence[dict[str, Any]], cache: Cache
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Plays sibling groups without and with the skill, `BATCH` tasks at a time. Returns the episodes that can be
    measured."""
    asked, played, skilled = session.arguments, list[Trajectory](), list[Trajectory]()
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        name = f"{first:04d}_{len(part)}"
        played += playable(groups(session, part, cache, f"{name}_plain"), asked.value)
        taught = groups(session, part, cache, f"{name}_skilled", session.config.num_generations)
        skilled += playable(taught, asked.value)
        if not asked.quiet:
            print(f"measure: {first + len(part)} tasks, {cpu_seconds():.0f} CPU seconds", file=sys.stderr, flush=True)
    return played, skilled


def _by_task(played: Iterable[Trajectory], value: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in played:
        found[one.task].append(outcome(one, value))
    return found


def advise(lift: Interval, ceiling: float, rounds: int, start: tuple[str, str]) -> tuple[dict[str, Any], str]:
    """Returns the settings to train with, as lines of a ``--config`` file, and the reason: to follow a teacher whose
    lift is clear and whose own success, the ``ceiling``, is not low, for the first half of the ``rounds``. ``start`` is
    the recipe and its model, for the commands of the reason."""
    if not lift.low > 0:  # NaN where too few tasks were measured
        reason = (
            "The skill does not clearly lift the policy, and a teacher that knows no more than the policy holds it "
        )
        return UNTAUGHT, f"{reason}back, so none is followed. More --tasks tell more."
    if ceiling < LOW:
        reason = (
            f"The skill lifts the policy, but only to {ceiling:.0%}, and to follow a teacher ends near it: reward may "
        )
        return UNTAUGHT, f"{reason}lead further, so none is followed."
    followed = TAUGHT | {"distribution_rounds": max(rounds // 2, 1)} | STANDING_TEACHER
    reason = (
        "The skill lifts the policy, so AlignOPSD follows its distribution for half of the rounds, and reward takes it "
    )
    reason += f"further: {_shown(followed)}."
    task, model = map(shlex.quote, start)
    reason += (
        " Cheaper, and on hops as good: it learns what it wins with the skill, by alignopsd demonstrate "
        f"{task} --policy {model}, then alignopsd warm_start {task} --model {model}."
    )
    return followed, reason


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def page(found: Mapping[str, Any], value: str) -> str:
    scale, unit, form = (100, "success in %", ".0f") if value == "success" else (1, "reward", ".2f")

    def shown(one: Interval) -> str:
        return format(Interval(scale * one.value, scale * one.low, scale * one.high), form)

    success: Mapping[str, Success] = found["success"]
    rows = ([name, one.tasks, *map(shown, (one.without, one.skilled, one.lift))] for name, one in success.items())
    facts = (
        f"{found['tasks']} training tasks, {found['episodes']} episodes and {found['skilled_episodes']} with the skill "
        f"in the prompt; {found['seconds']:.0f} s, {found['cpu_seconds']:.0f} CPU seconds."
    )
    lines = [f"# Before training: {found['recipe']}", "", f"    {found['command']}", "", facts, ""]
    lines += [*markdown([unit, "tasks", "without skill", "with skill", "lift"], rows), ""]
    return "\n".join([*lines, "Intervals: 95 %, resampled tasks.", "", found["advice"]["reason"], ""])


def yaml_text(recipe: str, settings: Mapping[str, Any], reason: str) -> str:
    """Returns the text of a ``--config`` file."""
    told = (f"Written by alignopsd measure {recipe}; figures: report.md", reason)
    comments = [f"# {' '.join(line.split())}" for line in told]  # a line break in a path would end the comment
    return "\n".join([*comments, yaml.safe_dump(dict(settings), sort_keys=False, default_flow_style=False, width=200)])

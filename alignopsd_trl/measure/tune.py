"""``alignopsd measure RECIPE``: measures batches of training tasks until tasks or time run out, and advises settings.

It writes ``tuned.yaml``, ``tune.json`` and ``report.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
import yaml

from alignopsd_trl.common.files import plain, write_json, write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.loading import load
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.values import json_mapping
from alignopsd_trl.measure.measurement import GAPS, Cache, Measurement, cpu_seconds, measured
from alignopsd_trl.measure.metrics import Turns, agreement
from alignopsd_trl.measure.ranking import EVERYTHING, REFERENCE, Advice, Standing, Success, advise, rank, successes
from alignopsd_trl.measure.report import markdown
from alignopsd_trl.measure.setup import Session, own_bank, prepare
from alignopsd_trl.measure.table import credit_of, measured_rows, turns_of
from alignopsd_trl.methods import Method
from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES
from alignopsd_trl.rollout.monte_carlo.rollouts import play_groups
from alignopsd_trl.rollout.monte_carlo.tree import outcome
from alignopsd_trl.turns import Trajectory

UNSKILLED = ("grpo", "gigpo", "hgpo", "graphgpo", "gagpo")
SKILLED = ("align_opsd", "rlsd")
VARIED = ("rectify=false", "credit_spread=0.4", "rectify=false+credit_spread=0.4")
"""The default candidates: methods without a teacher, methods with one, and settings of AlignOPSD."""

YAML = "tuned.yaml"

Batch = tuple[Measurement, Sequence[Trajectory]]
"""A few tasks' measurement, and the policy's episodes with the skill in the prompt."""


def tune(given: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file.

    Args:
        given: of `commands.read_measure`.
        shown: the command line.
    """
    began, used = time.monotonic(), cpu_seconds()
    with setup():
        suite = load(given.environment, **given.environment_options)
        skilled = bool(given.skill_bank or own_bank(suite))
        session = prepare(_as_fidelity(given, skilled), skilled)
        rows = session.draw_tasks(min(given.tasks, len(session.tasks)))
    with closing(session.player.environments):
        batches = list(_batches(session, rows, given.minutes))
    table = measured_rows([one.table for one, *_ in batches])
    turns = turns_of(table)
    facts = _facts(batches, turns) | {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - used}
    success = _success(batches, given.value)
    figures = agreement(turns, credit_of(table), REFERENCE) if len(table) else {}
    found = {
        "command": shown,
        "recipe": given.recipe,
        **facts,
        "success": success,
        "figures": figures,
        "ranking": rank(figures, turns.tasks),
        "teacher_agreement": _teacher(table, turns),
        "settings": _settings(session.variants),
    }
    lift = success[EVERYTHING].lift if success else None
    advice = advise(found["ranking"], found["settings"], lift, session.config.num_generations)
    return _leave(given, found, advice)


def _leave(given: argparse.Namespace, found: dict[str, Any], advice: Advice) -> dict[str, Any]:
    """Writes the files and prints the page."""
    folder, result = given.output, plain(found | {"advice": advice})
    lines = [f"# Before training: {given.recipe}", "", f"    {found['command']}", "", _summary(found), ""]
    lines += _success_lines(found["success"], given.value) + _credit_lines(found["figures"], found["ranking"])
    lines += _teacher_lines(found["teacher_agreement"])
    text = "\n".join([*lines, *advice.reasons, ""])
    settings = {name: value for name, value in given.set.items() if "." not in name}
    if given.model != given.settings["model_name_or_path"]:
        settings["model_name_or_path"] = given.model
    write_json(folder / "tune.json", result)
    write_text(folder / "report.md", text)
    write_text(folder / YAML, yaml_text(given.recipe, settings | advice.settings, advice))
    print(text)
    print(f"train with it: alignopsd train {given.recipe} --config {path_as_given(folder / YAML)}")
    return result


def _as_fidelity(given: argparse.Namespace, skilled: bool) -> argparse.Namespace:
    """Completes the arguments, so that they serve a measurement of `fidelity`. A preset's settings that are no fields
    of `AlignOPSDConfig` belong to the recipe."""
    methods = list(dict.fromkeys([REFERENCE, *(given.methods or [*UNSKILLED, *(SKILLED if skilled else ())])]))
    vary = given.vary if given.vary is not None else VARIED if "align_opsd" in methods else ()
    known = set(AlignOPSDConfig.__dataclass_fields__) - {"method_options"}
    fields = {name: value for name, value in given.settings.items() if name in known}
    return argparse.Namespace(**vars(given) | {"methods": methods, "vary": vary, "set": fields | given.set})


def _batches(session: Session, rows: Sequence[dict[str, Any]], minutes: float | None) -> Iterator[Batch]:
    """Measures ``tasks_per_batch`` tasks at a time. The first batch is measured even if it exceeds the time."""
    began, rollouts, size = time.monotonic(), 0, session.arguments.tasks_per_batch
    for number, first in enumerate(range(0, len(rows), size)):
        spent = time.monotonic() - began
        if number and minutes and spent * (1 + 1 / number) > 60 * minutes:
            return
        chosen = rows[first : first + size]
        found = _batch(session, chosen, f"{first:04d}")
        rollouts += found[0].tree.taken
        if not session.arguments.quiet:
            done, seconds = first + len(chosen), time.monotonic() - began
            line = f"measure: {done} of {len(rows)} tasks, {rollouts} Monte Carlo rollouts, {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
        yield found


def _batch(session: Session, rows: Sequence[dict[str, Any]], name: str) -> Batch:
    """Measures one batch, whose parts have their own folder."""
    with setup():
        identity = session.identity() | {"first": name, "tasks": len(rows)}
        cache = Cache(session.arguments.output / "parts" / name, identity)
    measurement = measured(session, rows, cache)
    replays, siblings = session.replays, session.config.num_generations

    def play() -> list[Trajectory]:
        torch.manual_seed(replays.seed)
        player = replace(session.player, privileged_siblings=siblings)
        return play_groups(replace(replays, player=player), rows, siblings, session.arguments.quiet)

    skilled = cache.take("skilled", play) if session.arguments.skill_bank else []
    return measurement, skilled


def _facts(batches: Sequence[Batch], turns: Turns) -> dict[str, Any]:
    played = [episode for one, *_ in batches for episode in one.played]
    return {
        "tasks": len({one.task for one in played}),
        "episodes": len(played),
        "skilled_episodes": sum(len(skilled) for _, skilled in batches),
        "monte_carlo_rollouts": sum(one.tree.taken for one, *_ in batches),
        "measured_tasks": turns.tasks,
        "measured_turns": len(turns.task),
        **turns.quality,
    }


def _success(batches: Sequence[Batch], value: str) -> dict[str, Success]:
    """Returns success with and without the skill, by category; empty without skills."""
    played = [episode for one, *_ in batches for episode in one.played]
    others = [episode for _, skilled in batches for episode in skilled if not episode.failed and episode.turns]
    if not others:
        return {}
    category = {one.task: one.category or str(one.row.get("category", "")) for one in played}
    highest = 1.0 if value == "success" else float("inf")
    return successes(_by_task(played, value), _by_task(others, value), category, highest)


def _by_task(played: Iterable[Trajectory], value: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in played:
        found[one.task].append(outcome(one, value))
    return found


def _teacher(table: pd.DataFrame, turns: Turns) -> Interval | None:
    """Returns the share of pivotal turns where the skill makes a good action likelier and a bad one less likely; `None`
    where no method computed these scores."""
    if not len(table) or GAPS not in table:
        return None
    return agreement(turns, {GAPS: table[GAPS].to_numpy()}, GAPS)[GAPS]["sign_agreement"]


def _settings(variants: Mapping[str, Method]) -> dict[str, dict[str, Any]]:
    """Returns each variant as lines of a ``--config`` file: its method and the settings that it changes."""
    found = {}
    for label, method in variants.items():
        own, usual = (vars(one) for one in (method.config, variants[method.config.method].config))
        options = json_mapping("method_options", own["method_options"], "{}")
        found[label] = {"method": own["method"], **({"method_options": options} if options else {})}
        found[label] |= {name: own[name] for name in OPTION_NAMES if own[name] != usual[name]}
    return found


# The page


def _summary(facts: Mapping[str, Any]) -> str:
    skilled = f" and {facts['skilled_episodes']} with the skill in the prompt" if facts["skilled_episodes"] else ""
    reliable = f"reliability of A_MC {facts['reliability']:.2f}; " if facts["measured_turns"] else ""
    return (
        f"{facts['tasks']} training tasks, {facts['episodes']} episodes{skilled}; {facts['monte_carlo_rollouts']} "
        f"Monte Carlo rollouts. {facts['measured_turns']} turns of {facts['measured_tasks']} tasks whose siblings' "
        f"rewards differ; {reliable}{facts['seconds']:.0f} s, {facts['cpu_seconds']:.0f} CPU seconds."
    )


def _success_lines(success: Mapping[str, Success], value: str) -> list[str]:
    if not success:
        return []
    scale, unit, form = (100, "success in %", ".0f") if value == "success" else (1, "reward", ".2f")

    def shown(one: Interval) -> str:
        return format(Interval(scale * one.value, scale * one.low, scale * one.high), form)

    rows = ([name, one.tasks, *map(shown, (one.without, one.skilled, one.lift))] for name, one in success.items())
    return [*markdown([unit, "tasks", "without skill", "with skill", "lift"], rows), ""]


def _credit_lines(figures: Mapping[str, Mapping[str, Interval]], ranking: Sequence[Standing]) -> list[str]:
    if not ranking:
        return []
    rows = []
    for one in ranking:
        own = figures[one.label]["r_within"], figures[one.label]["lift"]
        told = (f"{one.difference:+.2f}", one.verdict) if one.label != REFERENCE else ("", "")
        rows.append([one.label, one.cosine, told[0], *own, told[1]])
    lines = markdown(["credit", "cosine with A_MC", "less GRPO's", "r within", "lift", ""], rows)
    return [*lines, "", "Intervals: 95 %, resampled tasks; the last column allows for the number of settings.", ""]


def _teacher_lines(agrees: Interval | None) -> list[str]:
    if agrees is None:
        return []
    says = "At pivotal turns the skill makes good actions likelier and bad ones less likely in"
    return [f"{says} {agrees:.0%} of cases; 50% is chance.", ""]


def yaml_text(recipe: str, settings: Mapping[str, Any], advice: Advice) -> str:
    """Returns the text of a ``--config`` file."""
    comments = [f"# Written by alignopsd measure {recipe}; figures: report.md", *(f"# {one}" for one in advice.reasons)]
    return "\n".join([*comments, yaml.safe_dump(dict(settings), sort_keys=False, default_flow_style=False, width=200)])

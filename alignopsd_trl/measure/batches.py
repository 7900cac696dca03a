"""Measures batches of training tasks until tasks or time run out, and joins the results."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.measurement import OUTCOMES, Bench, Measurement, play_groups
from alignopsd_trl.measure.metrics import Turns, agreement
from alignopsd_trl.measure.options import BATCH
from alignopsd_trl.measure.ranking import REFERENCE, Success, successes
from alignopsd_trl.measure.session import Cache, cpu_seconds, draw_tasks, identity_of, measured
from alignopsd_trl.measure.setup import Subject
from alignopsd_trl.measure.variants import Variant
from alignopsd_trl.statistics import Interval
from alignopsd_trl.turns import Trajectory

GAPS = "token_identity_gaps"


@dataclass(frozen=True)
class Batch:
    """A few tasks with their measurement and the policy's episodes with the skill in the prompt."""

    measurement: Measurement
    skilled: Sequence[Trajectory]


@dataclass(frozen=True)
class Result:
    """The figures of all batches.

    Args:
        success: with and without the skill, by category; empty without skills.
        figures: of every variant, with `REFERENCE`; empty where no group's rewards differ.
        teacher: share of pivotal turns where the skill makes a good action likelier and a bad one less likely; `None`
            where no method computed these scores.
        facts: numbers of tasks, episodes, rollouts and seconds.
    """

    success: dict[str, Success]
    figures: dict[str, dict[str, Interval]]
    teacher: Interval | None
    facts: dict[str, Any]


def measure(
    asked: argparse.Namespace, subject: Subject, bench: Bench, variants: Sequence[Variant], skilled: bool
) -> Result:
    """Plays and measures batches of `BATCH` tasks. The first batch is measured even if it exceeds the time."""
    began, used = time.monotonic(), cpu_seconds()
    with setup():
        rows = draw_tasks(subject.tasks, min(asked.tasks, len(subject.tasks)), asked.seed)
    batches: list[Batch] = []
    for first in range(0, len(rows), BATCH):
        spent = (time.monotonic() - began) / 60
        if batches and asked.minutes and spent * (1 + 1 / len(batches)) > asked.minutes:
            break
        chosen = rows[first : first + BATCH]
        batches.append(_batch(asked, subject, bench, variants, skilled, chosen, f"{first:04d}"))
        if not asked.quiet:
            print(_progress(batches, len(rows), time.monotonic() - began), file=sys.stderr, flush=True)
    seconds = {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - used}
    return _result(batches, [one.label for one in variants], asked.value, seconds)


def _batch(
    asked: argparse.Namespace,
    subject: Subject,
    bench: Bench,
    variants: Sequence[Variant],
    skilled: bool,
    rows: Sequence[dict[str, Any]],
    name: str,
) -> Batch:
    """Measures one batch, whose parts have their own folder."""
    with setup():
        identity = identity_of(asked, subject, bench.player.skills_in_rollout) | {"first": name, "tasks": len(rows)}
        cache = Cache(asked.output / "parts" / name, identity, lambda: 0.0)
    measurement = measured(asked, subject, bench, variants, rows, cache)
    siblings = subject.config.num_generations

    def play() -> list[Trajectory]:
        player = replace(bench.player, privileged_siblings=siblings)
        torch.manual_seed(asked.seed)
        return play_groups(replace(bench, player=player), rows, siblings, asked.seed)

    return Batch(measurement, cache.take("skilled", play) if skilled else [])


def _progress(batches: Sequence[Batch], tasks: int, seconds: float) -> str:
    done = sum(len({one.task for one in batch.measurement.everyone}) for batch in batches)
    rollouts = sum(batch.measurement.tree.taken for batch in batches)
    return f"tune: {done} of {tasks} tasks, {rollouts} Monte Carlo rollouts, {seconds:.0f} s"


def _result(batches: Sequence[Batch], labels: Sequence[str], value: str, seconds: dict[str, float]) -> Result:
    """Computes the figures of all batches.

    Args:
        labels: of the variants.
        value: a key of `OUTCOMES`.
    """
    parts = [one.measurement for one in batches]
    turns = joined([one.turns for one in parts])
    credit = {label: np.concatenate([one.credit(label) for one in parts]) for label in labels}
    figures = agreement(turns, credit, REFERENCE) if len(turns.task) else {}
    return Result(_success(batches, value), figures, _teacher(parts, turns), _counts(batches, turns) | seconds)


def _success(batches: Sequence[Batch], value: str) -> dict[str, Success]:
    played = [episode for one in batches for episode in one.measurement.played]
    others = [episode for one in batches for episode in one.skilled if not episode.failed and episode.turns]
    if not others:
        return {}
    category = {one.task: one.category or str(one.row.get("category", "")) for one in played}
    highest = 1.0 if value == "success" else float("inf")
    return successes(_by_task(played, OUTCOMES[value]), _by_task(others, OUTCOMES[value]), category, highest)


def _teacher(parts: Sequence[Measurement], turns: Turns) -> Interval | None:
    gaps = [found for one in parts if (found := _gaps(one)) is not None]
    if not gaps or not len(turns.task):
        return None
    return agreement(turns, {GAPS: np.concatenate(gaps)}, GAPS)[GAPS]["sign_agreement"]


def _counts(batches: Sequence[Batch], turns: Turns) -> dict[str, Any]:
    played = [episode for one in batches for episode in one.measurement.played]
    return {
        "tasks": len({one.task for one in played}),
        "episodes": len(played),
        "skilled_episodes": sum(len(one.skilled) for one in batches),
        "monte_carlo_rollouts": sum(one.measurement.tree.taken for one in batches),
        "measured_tasks": turns.tasks,
        "measured_turns": len(turns.task),
        **turns.quality,
    }


def _by_task(played: Iterable[Trajectory], outcome: Callable[[Trajectory], float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in played:
        found[one.task].append(outcome(one))
    return dict(found)


def _gaps(one: Measurement) -> np.ndarray | None:
    """Sums each measured turn's identity gaps from the first method that computes them; `None` without such a
    method."""
    columns = []
    for part in one.credited:
        traces = (credit.trace[GAPS] for credit in part.credits.values() if GAPS in credit.trace)
        found = next(traces, None)
        if found is None:
            return None
        columns.append([0.0 if row is None else float(np.sum(row, dtype=np.float64)) for row in found])
    return np.concatenate(columns)[one.known]


def joined(parts: Sequence[Turns]) -> Turns:
    """Joins the turns of measurements of different tasks."""
    tasks = np.cumsum([0, *(one.tasks for one in parts)])
    rollouts = np.cumsum([0, *(int(one.trajectory.max(initial=-1)) + 1 for one in parts)])
    return Turns(
        np.concatenate([one.task + first for one, first in zip(parts, tasks, strict=False)]),
        np.concatenate([one.trajectory + first for one, first in zip(parts, rollouts, strict=False)]),
        *(np.concatenate([getattr(one, name) for one in parts]) for name in ("outcome", "advantage", "error")),
        np.concatenate([one.halves for one in parts], axis=1),
    )

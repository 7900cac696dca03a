"""Checks unknown actions, repeated episodes, and whether tasks differ. Needs no policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.checks.findings import Finding
from alignopsd_trl.checks.tasks import TRIED, content, seeded
from alignopsd_trl.environments.base import Failure, Step
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch
from alignopsd_trl.own_task.playing import PlayedEpisode
from alignopsd_trl.own_task.task import Task

UNKNOWN = ("", "no such action")


def unknown_actions(task: Task, row: Mapping[str, Any], time_limit: float) -> Iterator[Finding]:
    """Executes unknown actions, such as an untrained policy writes; yields a finding if one is not refused."""
    batch = open_batch(task.suite.factory, 1, time_limit)
    try:
        for action in UNKNOWN:
            (opening,) = batch.reset([0], [seeded(batch, row)])
            if isinstance(opening, Failure):
                return
            (step,) = batch.step([0], [action])
            text = _refusal_missing(step, offers=bool(opening.admissible))
            if text:
                yield Finding(
                    "action", f"step({action!r}), which is no action, {text}", isinstance(step, Failure) or _gains(step)
                )
                return
    finally:
        batch.close()


def _refusal_missing(step: Step | Failure, offers: bool) -> str:
    """Returns the fault in the step of an unknown action; an empty text if the action is refused."""
    if isinstance(step, Failure):
        return f"failed with {step.message}; answer any string, with valid=False"
    if offers and _gains(step):
        return f"got the reward {step.reward:g} and won={step.won}; give nothing for it, with valid=False"
    if offers and step.valid:
        return "counts as valid; return Step(valid=False), so that the log counts it"
    return ""


def _gains(step: Step) -> bool:
    return step.reward > 0 or bool(step.won)


def repeats(task: Task, played: Sequence[PlayedEpisode], time_limit: float) -> Iterator[Finding]:
    """Plays the actions of some episodes again, with the same seeds; yields a finding if a step differs."""
    batch = open_batch(task.suite.factory, 1, time_limit)
    try:
        for episode in [one for one in played if one.turns][:TRIED]:
            batch.reset([0], [seeded(batch, episode.row)])
            for number, turn in enumerate(episode.turns, start=1):
                (step,) = batch.step([0], [turn.action])
                if isinstance(step, Step) and _told(step) != _told(turn.step):
                    yield Finding(
                        "replay",
                        f"task {episode.row['task_id']!r}: the same actions came out otherwise at turn {number}, "
                        f"{_told(turn.step)!s:.70} and {_told(step)!s:.70}; draw chance in reset() from 'seed', or, if "
                        "chance on the way is meant, from 'dynamics_seed'",
                    )
                    return
                if isinstance(step, Failure):
                    break
    finally:
        batch.close()


def alike(
    task: Task, rows: Sequence[Mapping[str, Any]], played: Sequence[PlayedEpisode], time_limit: float
) -> Iterator[Finding]:
    """Plays the longest episode's actions in several tasks; yields a finding if these never differ. Tasks with equal
    columns may differ by their seed, which comes from the ``task_id``."""
    differing = list({content(row): row for row in rows}.values())
    others = (differing if len(differing) > 1 else rows)[:TRIED]
    longest = max((one for one in played if one.opening and one.turns), key=lambda one: len(one.turns), default=None)
    if longest is None or len(others) == 1:
        return
    batch = open_batch(task.suite.factory, 1, time_limit)
    try:
        seen = {_course(batch, row, longest) for row in others}
    finally:
        batch.close()
    if len(seen) > 1:
        return
    if len(differing) == 1:
        yield Finding("tasks", f"all {len(rows)} tasks are one; their columns must differ, or reset() draw from 'seed'")
        return
    yield Finding(
        "tasks",
        f"{len(others)} tasks open and go on alike; if they are meant to differ, reset() must read their columns by "
        "name",
        ruins=False,
    )


def _course(batch: ValidatedBatch, row: Mapping[str, Any], episode: PlayedEpisode) -> str:
    """Returns the texts that a task shows while an episode's actions are played."""
    (opening,) = batch.reset([0], [seeded(batch, row)])
    shown = [getattr(opening, "observation", ""), getattr(opening, "task_text", "")]
    for turn in episode.turns:
        (step,) = batch.step([0], [turn.action])
        if not isinstance(step, Step) or step.done:
            return repr([*shown, repr(step)])
        shown.append(step.observation)
    return repr([*shown, repr(batch.finish([0]))])


def _told(step: Step) -> tuple[Any, ...]:
    return step.observation, step.reward, step.done, step.won, step.admissible


def drawn(rows: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[Mapping[str, Any]]:
    """Draws some rows in random order."""
    return random.Random(seed).sample(list(rows), min(count, len(rows)))

"""How episodes start: siblings, repetition, tasks that are told apart. Needs a few resets, no policy."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening, Step
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch
from alignopsd_trl.own_task.findings import Finding
from alignopsd_trl.own_task.playing import PlayedEpisode, seeded
from alignopsd_trl.own_task.task import Task
from alignopsd_trl.rollout import SiblingsDiffer, check_openings

TRIED = 4  # tasks
SIBLINGS = 4
UNKNOWN = ("", "no such action")


def starts(task: Task, rows: Sequence[Mapping[str, Any]], time_limit: float) -> Iterator[Finding]:
    """Resets siblings of some tasks, and again after a step."""
    batch = open_batch(task.suite.factory, SIBLINGS, time_limit)
    try:
        for row in rows[:TRIED]:
            found = list(_siblings(batch, row))
            yield from found
            if found:
                return
    finally:
        batch.close()


def _siblings(batch: ValidatedBatch, row: Mapping[str, Any]) -> Iterator[Finding]:
    name = row["task_id"]
    slots = range(SIBLINGS)
    rows = [seeded(batch, row, sibling=one) for one in slots]
    openings = batch.reset(slots, rows)
    failed = next((one for one in openings if isinstance(one, Failure)), None)
    if failed is not None:
        yield Finding("reset", f"task {name!r}: {failed.message}; mend reset()")
        return
    for about, others in (("siblings", openings), ("reset", [*openings, *_again(batch, rows, openings[0])])):
        try:
            if not batch.openings_may_differ:
                check_openings(others, [name] * len(others), batch.name)
        except SiblingsDiffer as error:
            what = "" if about == "siblings" else "after an episode the same task opens otherwise: "
            yield Finding(about, f"{what}{error}")
            return
    if not openings[0].task_text.strip():
        yield Finding(
            "task text", f"task {name!r}: Opening.task_text is empty; skills are retrieved by it: say the request"
        )


def _again(batch: ValidatedBatch, rows: Sequence[Mapping[str, Any]], opening: Opening) -> list[Opening | Failure]:
    """Openings after a step of another episode in the same slots: what is left over from it shows."""
    batch.step(range(len(rows)), [(*opening.admissible, "")[0]] * len(rows))
    return batch.reset(range(len(rows)), rows)


def unknown_actions(task: Task, row: Mapping[str, Any], time_limit: float) -> Iterator[Finding]:
    """Executes what a policy writes before it knows the actions."""
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
    """What is wrong with the answer to an unknown action; empty if it is refused."""
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
    """Plays the actions of some episodes again, with the same seeds."""
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
    """Plays the longest episode's actions in other tasks: tasks that never differ are one task."""
    others = {_content(row): row for row in rows}
    longest = max((one for one in played if one.opening and one.turns), key=lambda one: len(one.turns), default=None)
    if longest is None or len(others) == 1 < len(rows):
        if longest is not None:
            yield Finding("tasks", f"all {len(rows)} tasks are one; their columns must differ")
        return
    batch = open_batch(task.suite.factory, 1, time_limit)
    try:
        seen = {_course(batch, row, longest) for row in list(others.values())[:TRIED]}
    finally:
        batch.close()
    if len(seen) == 1 < len(others):
        yield Finding(
            "tasks",
            f"{min(TRIED, len(others))} tasks open and go on alike; if they are meant to differ, reset() must read "
            "their columns by name",
            ruins=False,
        )


def _course(batch: ValidatedBatch, row: Mapping[str, Any], episode: PlayedEpisode) -> str:
    """What a task shows to an episode's actions."""
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


def splits(task: Task, rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Training tasks and the panel."""
    names = [row["task_id"] for row in rows]
    twice = len(names) - len(set(names))
    if twice:
        yield Finding("tasks", f"{twice} of {len(names)} task_ids occur twice in tasks('train'); give each row its own")
    try:
        panel = list(task.suite.panel(task.preset.get("panel", "test")))
    except Exception as error:  # foreign code
        yield Finding("panel", f"panel('test') failed with {type(error).__name__}: {error}; return a TaskPanel")
        return
    known = {_content(row) for row in rows}
    same = sum(_content(row) in known for row in panel)
    if same and not (task.name == task.suite.name and not task.preset and names == [row["task_id"] for row in panel]):
        yield Finding(
            "panel", f"{same} of {len(panel)} tasks of the panel are trained on too; keep them apart", ruins=False
        )


def _content(row: Mapping[str, Any]) -> str:
    told = {name: value for name, value in row.items() if name not in ("task_id", "category")}
    return json.dumps(told, sort_keys=True, default=str)


def openings(task: Task, rows: Sequence[Mapping[str, Any]], time_limit: float) -> list[Opening]:
    """How tasks open, without those that fail."""
    batch = open_batch(task.suite.factory, 1, time_limit)
    try:
        found = [batch.reset([0], [seeded(batch, row)])[0] for row in rows]
    finally:
        batch.close()
    return [one for one in found if isinstance(one, Opening)]


def drawn(rows: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[Mapping[str, Any]]:
    """Some rows, in a drawn order."""
    return random.Random(seed).sample(list(rows), min(count, len(rows)))

"""Checks of a task without a policy: all rows open, unknown actions are refused, episodes repeat themselves."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import psutil

from alignopsd_trl.checks.tasks import FAILED_RESET, Finding, Row, look, seeded
from alignopsd_trl.commands.own_task.playing import SLOTS, native_message
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.environments.alike import difference
from alignopsd_trl.environments.base import Failure, Opening, Step
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.rollout.episode import Episode, SkillSource, skill_of

REPEATED = 3  # episodes whose actions siblings play again
QUICK = 0.1  # seconds
UNKNOWN = ("", "no such action", "<action>no_such_tool()</action>")
SECONDS = 3.0  # after which no more tasks are opened, and of the steps that siblings repeat

Opened = list[tuple[Row, Opening | Failure]]


def open_all(task: Task, rows: Sequence[Row], time_limit: float, over: float) -> Opened:
    """Opens tasks in the order of their rows, as many as `SECONDS` allow before it is ``over`` by the monotonic clock,
    and at least one. Returns rows with their reset results."""
    wanted = 1 if task.declared.most_alive else max(1, min(SLOTS, len(rows)))
    opened = list[Any]()
    with closing(open_batch(task.suite.factory, wanted, time_limit, here=True)) as batch:
        end = min(time.monotonic() + SECONDS, over)
        while len(opened) < len(rows) and (not opened or time.monotonic() < end):  # the first alone: it may take long
            part = rows[len(opened) : len(opened) + min(batch.slots, len(opened) + 1)]
            opened += zip(part, batch.reset(range(len(part)), [seeded(batch, row) for row in part]), strict=True)
    return opened


def faults(rows: Sequence[Row], opened: Opened, skills: SkillSource) -> Iterator[Finding]:
    """Yields findings about tasks that don't open, skills that fail, tasks that are one, and categories that no row
    names."""
    closed = [(row, one) for row, one in opened if isinstance(one, Failure)]
    asked = [(row, skill_of(skills, one, row)) for row, one in opened if isinstance(one, Opening)]
    yield from _failed(FAILED_RESET, closed, len(opened), "mend reset()")
    unskilled = [(row, one) for row, one in asked if isinstance(one, Failure)]
    yield from _failed("skill", unskilled, len(asked), "mend it there, or give '' for no skill")
    shown = {(one.observation, one.task_text) for _, one in opened if isinstance(one, Opening)}
    if len(rows) > 1 and len(shown) == 1 and len({content(row) for row in rows}) == 1:
        yield look(
            "tasks",
            f"all {len(rows)} tasks are one: their columns are equal and they open alike; the columns must differ, or "
            "reset() draw from 'seed'",
        )
    kinds = {one.category for _, one in opened if isinstance(one, Opening)}
    if len(kinds) > 1 and "category" not in rows[0]:
        yield look(
            "category",
            f"tasks open in {len(kinds)} categories, which no row names; give the rows a column category, so that "
            "spread_categories can give each round its share of each",
        )


def content(row: Row) -> str:
    """Returns a row as JSON, without ``task_id`` and ``category``."""
    told = {name: value for name, value in row.items() if name not in ("task_id", "category")}
    return json.dumps(told, sort_keys=True, default=str)


def _failed(about: str, failed: Sequence[tuple[Row, Failure]], tried: int, remedy: str) -> Iterator[Finding]:
    if failed:
        row, failure = failed[0]
        text = f"{len(failed)} of {tried} tasks failed, the first {row['task_id']!r} with: {failure.message}; {remedy}"
        yield Finding(about, text)


def cost(task: Task, row: Row, time_limit: float) -> tuple[str, float]:
    """Opens an environment, beside a first one if two may exist. Returns what that took in words, and the seconds of
    its reset."""
    most, made = task.declared.most_alive, 0.0
    with ExitStack() as opened_first:
        if most != 1:
            first = opened_first.enter_context(closing(open_batch(task.suite.factory, 1, time_limit, here=True)))
            begun = time.perf_counter()
            first.reset([0], [seeded(first, row)])
            made = time.perf_counter() - begun
        before, begun = _held(), time.perf_counter()
        with closing(open_batch(task.suite.factory, 1, time_limit, here=True)) as batch:
            opened = time.perf_counter()
            batch.reset([0], [seeded(batch, row)])
            seconds, held = time.perf_counter() - opened, max(_held() - before, 0) / 1e6
    kept = f", at most {most} at once" if most else ""
    if made and task.declared.prepare_row is not None:
        kept += f", {max(made - seconds, 0.0):.1f} s more for a row that is new"
    return f"{opened - begun:.1f} s to open, {seconds:.1f} s to reset, {held:.0f} MB{kept}", seconds


def _held() -> int:
    """Returns the bytes of memory of this process and those that it started."""
    process = psutil.Process()
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def unknown_actions(task: Task, row: Row, time_limit: float) -> Iterator[Finding]:
    """Executes unknown actions, such as an untrained policy writes; yields a finding if one is not refused."""
    with closing(open_batch(task.suite.factory, 1, time_limit, here=True)) as batch:
        native = getattr(batch.prompt, "native", False)
        for action in UNKNOWN:
            (opening,) = batch.reset([0], [seeded(batch, row)])
            if isinstance(opening, Failure):
                return
            (step,) = batch.step([0], [json.dumps(native_message(action)[0]) if native else action])
            text, ruins = _unrefused(step, offers=bool(opening.admissible))
            if text:
                yield Finding("action", f"step({action!r}), which is no action, {text}", ruins)
                return


def _unrefused(step: Step | Failure, offers: bool) -> tuple[str, bool]:
    """Returns the fault in an unknown action's step, and whether it ruins a run; an empty text if it is refused."""
    if isinstance(step, Failure):
        return f"failed with {step.message}; answer any string, with valid=False; an agent's error: loses=(...)", True
    if offers and (step.reward > 0 or step.won):
        return f"got the reward {step.reward:g} and won={step.won}; give nothing for it, with valid=False", True
    if offers and step.valid:
        return "counts as valid; return Step(valid=False), so that the log counts it", False
    return "", False


def repeats(task: Task, episodes: Sequence[Episode], time_limit: float, reset: float) -> Iterator[Finding]:
    """Lets siblings play the actions of some episodes again; yields a finding if anything differs. Of environments that
    take long to ``reset``, in seconds, one episode is enough."""
    played, waited = [one.trajectory for one in episodes], [seconds for one in episodes for seconds in one.waited]
    first = {one.row["task_id"]: one for one in reversed(played) if one.turns}
    some = [*first.values()][-REPEATED if reset < QUICK else -1 :]
    if not some or not waited:
        return
    most = max(2, int(SECONDS / REPEATED / max(statistics.mean(waited), 1e-3)))  # slow steps: the first turns alone
    with closing(open_batch(task.suite.factory, 1, time_limit, here=True)) as batch:
        scripts = [(seeded(batch, one.row), [turn.action for turn in one.turns[:most]]) for one in some]
    found = difference(task.suite.factory, scripts, time_limit, lambda row: row["task_id"])
    if found is not None:
        yield Finding(found.about, found.text)

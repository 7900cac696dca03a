"""Opens every task once, and finds the rows on which `reset` or a skill fails. Needs no policy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.checks.findings import Finding
from alignopsd_trl.checks.tasks import FAILED_RESET, seeded
from alignopsd_trl.environments.base import Failure, Opening
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.own_task.playing import SLOTS
from alignopsd_trl.own_task.task import Task
from alignopsd_trl.rollout import SkillSource, skill_of

SECONDS = 30.0  # after which no more tasks are opened

Row = Mapping[str, Any]
Opened = list[tuple[Row, Opening | Failure]]


def open_all(task: Task, rows: Sequence[Row], time_limit: float) -> Opened:
    """Opens tasks in the order of their rows, as many as time allows, and returns rows with their reset results."""
    slots, end = max(1, min(SLOTS, len(rows))), time.monotonic() + SECONDS
    batch, opened = open_batch(task.suite.factory, slots, time_limit), []
    try:
        for first in range(0, len(rows), slots):
            part = rows[first : first + slots]
            opened += zip(part, batch.reset(range(len(part)), [seeded(batch, row) for row in part]), strict=True)
            if time.monotonic() > end:
                break
    finally:
        batch.close()
    return opened


def faults(rows: Sequence[Row], opened: Opened, skills: SkillSource) -> Iterator[Finding]:
    """Yields findings about tasks that don't open, skills that fail, and tasks left out for lack of time."""
    closed = [(row, one) for row, one in opened if isinstance(one, Failure)]
    asked = [(row, skill_of(skills, one, row)) for row, one in opened if isinstance(one, Opening)]
    yield from _failed(FAILED_RESET, closed, len(opened), "mend reset()")
    unskilled = [(row, one) for row, one in asked if isinstance(one, Failure)]
    yield from _failed("skill", unskilled, len(asked), "mend it there, or give '' for no skill")
    if len(opened) < len(rows):
        yield Finding("tasks", f"{len(opened)} of {len(rows)} tasks were opened in {SECONDS:g} s", ruins=False)


def _failed(about: str, failed: Sequence[tuple[Row, Failure]], tried: int, remedy: str) -> Iterator[Finding]:
    if failed:
        row, failure = failed[0]
        text = f"{len(failed)} of {tried} tasks failed, the first {row['task_id']!r} with: {failure.message}; {remedy}"
        yield Finding(about, text)

"""Checks that a server gives as many sessions as episodes are played at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.base import Failure
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch

PATIENCE = 2.0
"""Seconds for a server to take back the sessions of clients that were closed just before."""


def check_sessions(
    factory: OpenEnvEnvironment, episodes: int, row: Mapping[str, Any], time_limit: float, instead: str
) -> None:
    """Opens one session per episode, all at the same time, and closes them again.

    Args:
        factory: makes the environments.
        episodes: number of episodes that all processes play at once.
        row: the task to which each session is reset.
        time_limit: seconds that one reset may take.
        instead: remedy in the message: how to play fewer episodes at once.

    Raises:
        ValueError: if the server gives fewer sessions.
    """
    with closing(open_batch(factory, episodes, time_limit)) as batch:
        failures = _failures(batch, range(episodes), {"seed": 0, "dynamics_seed": 0, **row})
    if len(failures) == episodes:
        raise ValueError(
            f"environment {batch.name}: reset() fails for every client ({_short(failures[0])}); start the server, or "
            "correct connect"
        )
    if failures:
        raise ValueError(
            f"environment {batch.name}: {episodes} episodes are played at once, and the server gave "
            f"{episodes - len(failures)} sessions ({_short(failures[0])}); raise its max_concurrent_envs, or {instead}"
        )


def _failures(batch: ValidatedBatch, slots: Sequence[int], row: Mapping[str, Any]) -> list[Failure]:
    """Resets slots until all succeed or time is up, and returns the failures that are left."""
    end = time.monotonic() + PATIENCE
    while True:
        outcomes = batch.reset(slots, [row] * len(slots))
        failed = [(slot, one) for slot, one in zip(slots, outcomes, strict=True) if isinstance(one, Failure)]
        if not failed or time.monotonic() > end:
            return [one for _, one in failed]
        slots = [slot for slot, _ in failed]
        time.sleep(0.1)


def _short(failure: Failure) -> str:
    text = " ".join(failure.message.split())
    return text if len(text) <= 160 else f"{text[:157]}..."

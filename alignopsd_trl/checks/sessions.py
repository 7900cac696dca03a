"""Whether a server gives as many sessions as episodes are played at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.base import Failure
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch

PATIENCE = 2.0
"""Seconds for a server to take back the sessions of clients that were closed just before."""


def check_sessions(
    factory: OpenEnvEnvironment, episodes: int, row: Mapping[str, Any], time_limit: float, instead: str
) -> None:
    """Opens a session an episode, all at the same time, and closes them again.

    Args:
        factory: of the environments.
        episodes: played at once, by all processes.
        row: of the task that each session is reset to.
        time_limit: seconds of one reset.
        instead: what plays fewer at once.

    Raises:
        ValueError: if the server gives fewer.
    """
    batch = open_batch(factory, episodes, time_limit)
    try:
        failures = _failures(batch, range(episodes), {"seed": 0, "dynamics_seed": 0, **row})
    finally:
        batch.close()
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
    """What the slots that can't be reset end in, however often they are asked."""
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

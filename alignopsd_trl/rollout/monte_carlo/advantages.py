"""Advantages of the turns of a training round, measured by Monte Carlo rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from alignopsd_trl.rollout.monte_carlo.rollouts import Replays, take_rollouts
from alignopsd_trl.rollout.monte_carlo.tree import Advantages, turn_advantages
from alignopsd_trl.turns import Trajectory, TurnBatch


def with_advantages(batch: TurnBatch, trajectories: Sequence[Trajectory], replays: Replays, rollouts: int) -> TurnBatch:
    """Returns a batch with the A_MC of its turns, ``(M,)`` float64, NaN in groups whose rewards are all equal. Every
    process must make the same calls."""
    taken = counted(trajectories)
    found = np.empty(len(batch))
    found[rows_of(taken)] = measured(replays, taken, rollouts, "reward").advantage
    return replace(batch, turn_advantages=torch.from_numpy(found).to(batch.task.device))


def measured(
    replays: Replays, trajectories: Sequence[Trajectory], rollouts: int, value: str, enough: float | None = 1.0
) -> Advantages:
    """Plays Monte Carlo rollouts and keeps the random state of training unchanged."""
    with torch.random.fork_rng():
        return turn_advantages(take_rollouts(replays, trajectories, rollouts, value=value, enough=enough))


def counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the trajectories whose turns are in a batch."""
    return [one for one in trajectories if not one.failed and one.turns]


def rows_of(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Returns the rows of trajectories' turns in their batch."""
    return np.array([turn.row for one in trajectories for turn in one.turns], dtype=np.int64)

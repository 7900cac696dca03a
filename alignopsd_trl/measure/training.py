"""Measures a training round: its groups and the credit of the method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.measure.mc_rollouts import take_rollouts
from alignopsd_trl.measure.metrics import NAMES, agreement
from alignopsd_trl.measure.plan import tasks_that_differ
from alignopsd_trl.measure.table import measured_rows, turn_table, turns_of
from alignopsd_trl.measure.tree import Advantages, turn_advantages
from alignopsd_trl.measure.variants import turn_credit
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.training.round import Replays, Round
from alignopsd_trl.turns import Trajectory, TurnBatch


def monte_carlo_advantages(
    replays: Replays, trajectories: Sequence[Trajectory], batch: TurnBatch, rollouts: int, value: str = "reward"
) -> torch.Tensor:
    """Measures ``(M,)`` float64 A_MC of a batch's turns, NaN in groups whose rewards are all equal. Every process must
    make the same calls."""
    counted = _counted(trajectories)
    result = np.empty(len(batch))
    result[_rows(counted)] = _measured(replays, counted, rollouts, value).advantage
    return torch.from_numpy(result).to(batch.task.device)


class FidelityListener:
    """Measures some rounds of training (``fidelity_every``).

    Args:
        config: the run's configuration.
    """

    def __init__(self, config: AlignOPSDConfig):
        self._config = config

    def listens(self, number: int) -> bool:
        return number % self._config.fidelity_every == 0

    def hear(self, played: Round) -> dict[str, float]:
        """Returns scalars for the log: the agreement of a round's credit with A_MC on this process's first
        ``fidelity_tasks`` groups whose rewards differ. Values are of success, or of rewards where success is
        unknown."""
        config, counted = self._config, _counted(played.trajectories)
        chosen = tasks_that_differ(counted)[: config.fidelity_tasks]
        counted = [one for one in counted if one.task in chosen]
        value = "reward" if any(one.won is None for one in counted) else "success"
        found = _measured(played.replays, counted, config.fidelity_walks, value, enough=None)
        metrics = {"fidelity/tasks": float(len(chosen)), "fidelity/turns": float(found.known.sum())}
        if not found.known.any():
            return metrics
        rows = _rows(counted)
        table = turn_table(counted, found, outcome(played.batch, config).advantage.cpu().numpy()[rows])
        table["credit"] = turn_credit(played.credit, played.batch).cpu().numpy()[rows]
        table = measured_rows([table])
        turns = turns_of(table)
        figures = agreement(turns, {"credit": table["credit"].to_numpy()}, "credit")["credit"]
        shown = {name: figures[name].value for name in NAMES} | turns.quality
        return metrics | {f"fidelity/{name}": value for name, value in shown.items() if np.isfinite(value)}


def _measured(
    replays: Replays, trajectories: Sequence[Trajectory], rollouts: int, value: str, enough: float | None = 1.0
) -> Advantages:
    """Plays Monte Carlo rollouts and keeps the random state of training unchanged."""
    with torch.random.fork_rng():
        return turn_advantages(take_rollouts(replays, trajectories, rollouts, value=value, enough=enough))


def _counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [one for one in trajectories if not one.failed and one.turns]


def _rows(trajectories: Sequence[Trajectory]) -> np.ndarray:
    return np.array([turn.row for one in trajectories for turn in one.turns], dtype=np.int64)

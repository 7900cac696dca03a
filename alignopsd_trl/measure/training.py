"""Measures a training round: its groups and the credit of the method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.measure.measurement import Bench, columns, take_rollouts, turn_advantages
from alignopsd_trl.measure.metrics import NAMES, agreement
from alignopsd_trl.measure.plan import tasks_that_differ
from alignopsd_trl.measure.tree import Tree
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
    found = turn_advantages(_tree(replays, counted, rollouts, value), counted, value).advantage
    result = np.empty(len(batch))
    result[[turn.row for one in counted for turn in one.turns]] = found
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
        config, batch, replays = self._config, played.batch, played.replays
        counted = _counted(played.trajectories)
        chosen = tasks_that_differ(counted)[: config.fidelity_tasks]
        counted = [one for one in counted if one.task in chosen]
        value = "reward" if any(one.won is None for one in counted) else "success"
        tree = _tree(replays, counted, config.fidelity_walks, value, enough=None)
        rows = [turn.row for one in counted for turn in one.turns]
        sides = outcome(batch, config).advantage.cpu().numpy()[rows]
        measured, known, _ = columns(counted, tree, counted, sides, value)
        metrics = {"fidelity/tasks": float(len(chosen)), "fidelity/turns": float(known.sum())}
        if not known.any():
            return metrics
        values = turn_credit(played.credit, batch).cpu().numpy()[rows][known]
        figures = agreement(measured, {"credit": values}, "credit")["credit"]
        shown = {name: figures[name].value for name in NAMES} | measured.quality
        return metrics | {f"fidelity/{name}": value for name, value in shown.items() if np.isfinite(value)}


def _tree(
    replays: Replays, trajectories: Sequence[Trajectory], rollouts: int, value: str, enough: float | None = 1.0
) -> Tree:
    """Plays Monte Carlo rollouts and keeps the random state of training unchanged."""
    bench = Bench(replays.player, replays.slots, None, None, 0)
    with torch.random.fork_rng():
        return take_rollouts(bench, trajectories, rollouts, value=value, enough=enough, seed=replays.seed)


def _counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [one for one in trajectories if not one.failed and one.turns]

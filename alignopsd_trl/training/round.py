"""A training round: what was played and credited, and callbacks that observe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import TrainerCallback

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit
from alignopsd_trl.rollout.monte_carlo.rollouts import Replays
from alignopsd_trl.turns import Trajectory, TurnBatch


@dataclass(frozen=True)
class Round:
    """A played round with its credit.

    Attributes:
        number: number of rounds before it.
        update: number of optimiser steps before it.
        replays: the means to replay its episodes while the weights are fixed.
    """

    number: int
    update: int
    trajectories: Sequence[Trajectory]
    batch: TurnBatch
    credit: Credit
    replays: Replays

    def callbacks(self, every: Sequence[TrainerCallback]) -> list[RoundCallback]:
        """Returns the callbacks among ``every`` that want this round."""
        return [one for one in every if isinstance(one, RoundCallback) and one.listens(self.number)]


class RoundCallback(TrainerCallback):
    """A callback that a trainer also hands its rounds to, on every process, while the weights are fixed."""

    def listens(self, number: int) -> bool:
        """Returns whether it wants the round with this number (rounds before it)."""
        return True

    def on_round(self, args: AlignOPSDConfig, played: Round) -> Mapping[str, float]:
        """Returns numbers for the log."""
        return {}

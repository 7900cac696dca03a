"""A training round: what was played and credited, and who listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from alignopsd_trl.methods import Credit
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.turns import Trajectory, TurnBatch


@dataclass(frozen=True)
class Replays:
    """The means to replay episodes of a round from one of their turns.

    Attributes:
        player: a player with the rollouts' policy and prompts.
        slots: number of episodes that it plays side by side.
        seed: of this round and process.
    """

    player: Player
    slots: int
    seed: int


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


class Listener(Protocol):
    """Observes rounds on every process, while the weights are fixed."""

    def listens(self, number: int) -> bool:
        """Returns whether it observes the round with this number (rounds before it)."""

    def hear(self, played: Round) -> Mapping[str, float]:
        """Returns numbers for the log."""

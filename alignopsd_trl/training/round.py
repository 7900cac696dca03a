"""What a round of training is made of, and who may listen to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from alignopsd_trl.methods import Credit
from alignopsd_trl.rollout import AnySampler, BatchSampler, Player
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.turns import Trajectory, TurnBatch


@dataclass(frozen=True)
class Snapshot:
    """The policy while its weights stand still, as in a round.

    Attributes:
        sampler: plays the rollouts.
        thinker: samples privileged thinking, with its own token limit.
        prefixes: what the policy made of prompts so far; `None` where it does not sample in this process, and where
            another model is the teacher.
        teacher: plays privileged siblings; `None` if the policy itself does.
    """

    sampler: AnySampler
    thinker: BatchSampler
    prefixes: PrefixCache | None = None
    teacher: AnySampler | None = None


@dataclass(frozen=True)
class Replays:
    """How episodes of a round are played again from one of their turns.

    Attributes:
        player: with the rollouts' policy and prompts.
        slots: episodes that it plays side by side.
        seed: of this round and process.
    """

    player: Player
    slots: int
    seed: int


@dataclass(frozen=True)
class Round:
    """A round that was played and got its credit.

    Attributes:
        number: rounds before it.
        update: optimiser steps before it.
        replays: how its episodes can be played again while the weights stand still.
    """

    number: int
    update: int
    trajectories: Sequence[Trajectory]
    batch: TurnBatch
    credit: Credit
    replays: Replays


class Listener(Protocol):
    """Looks at rounds on every process, while the weights stand still."""

    def listens(self, number: int) -> bool:
        """Whether it wants the round with so many rounds before it."""

    def hear(self, played: Round) -> Mapping[str, float]:
        """Gives numbers for the log."""

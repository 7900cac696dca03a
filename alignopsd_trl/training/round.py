"""A training round: the samplers of its fixed weights, what was played and credited, and who listens."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit
from alignopsd_trl.rollout import AnySampler, BatchSampler, Player, SortedByLength
from alignopsd_trl.sampling.backend import Backend, HandOver
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_weights import TeacherWeights
from alignopsd_trl.turns import Trajectory, TurnBatch


@dataclass(frozen=True)
class Snapshot:
    """The policy with fixed weights, as in a round.

    Attributes:
        sampler: plays the rollouts.
        thinker: samples privileged reasoning traces, with its own token limit.
        prefixes: cache of encoded prompts; `None` where the policy does not sample in this process.
        privileged_prefixes: that of ``thinker``: the same one, unless the teacher has weights of its own.
        teacher: plays privileged siblings; `None` if the policy itself does.
        hand_over: as in [`~alignopsd_trl.rollout.Player`].
    """

    sampler: AnySampler
    thinker: BatchSampler
    prefixes: PrefixCache | None = None
    privileged_prefixes: PrefixCache | None = None
    teacher: AnySampler | None = None
    hand_over: HandOver | None = None


@dataclass(eq=False)
class Samplers:
    """Makes the samplers of a round or an evaluation.

    Args:
        config: has temperatures and token limits.
        backend: the back end that samples from the policy.
        teacher: weights of a separate teacher; `None` if the policy is its own teacher.
        slots: number of episodes side by side.
    """

    config: AlignOPSDConfig
    backend: Backend
    teacher: TeacherWeights | None
    slots: int

    @contextlib.contextmanager
    def snapshot(self) -> Generator[Snapshot]:
        """Opens the samplers of a round until it is played and credited."""
        temperature, limit = self.config.temperature, self.config.max_completion_length
        caches = 1 if self.teacher is None else 2
        with self.backend.ready(), self.backend.prefixes(caches) as prefixes:
            sampler = self.backend.sampler(temperature, limit, prefixes)
            if self.teacher is None:
                yield Snapshot(sampler, self.thinker(prefixes), prefixes, prefixes)
                return
            with self.backend.prefixes(caches) as own:
                player, hand_over = self.backend.sampler(temperature, limit, own), self.backend.hand_over(self.teacher)
                player = self._of_teacher(player) if hand_over is None else player
                yield Snapshot(sampler, self.thinker(own), prefixes, own, player, hand_over)

    def thinker(self, prefixes: PrefixCache | None = None) -> BatchSampler:
        """Makes the sampler of privileged reasoning traces, which has its own token limit."""
        limit = self.config.teacher_max_completion_length or self.config.max_completion_length
        fits = partial(self.backend.rows_at_once, limit=limit, least=self.slots, prefixes=prefixes)
        sampler = self._of_teacher(self.backend.sampler(self.config.temperature, limit, prefixes))
        return self.backend.together(SortedByLength(sampler, fits))

    @contextlib.contextmanager
    def evaluation(self, temperature: float) -> Generator[AnySampler]:
        """Opens the sampler of an evaluation."""
        with self.backend.ready(), self.backend.prefixes() as prefixes:
            yield self.backend.sampler(temperature, self.config.max_completion_length, prefixes)

    def _of_teacher(self, sampler: Any) -> Any:
        return sampler if self.teacher is None else self.backend.of_teacher(sampler, self.teacher)

    def close(self) -> None:
        """Closes connections of the back end; the next round or evaluation opens new ones."""
        self.backend.close()


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

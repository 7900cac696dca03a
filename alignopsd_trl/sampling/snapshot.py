"""The policy as it samples during a round: with fixed weights, beside its teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.rollout.sampler import AnySampler, BatchSampler, SortedByLength
from alignopsd_trl.sampling.backend import Backend, HandOver
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_weights import TeacherWeights


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

"""The interface of decoding back ends, a class with one abstract method `sampler`; and the policy as it samples during
a round: with fixed weights, beside its teacher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import AnySampler, BatchSampler, Responses, SortedByLength
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher import TeacherWeights

HandOver = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class TeacherSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that samples from the teacher's weights.

    Args:
        sampler: the policy's sampler, with a prefix cache that it does not share.
        held: puts the teacher's weights in the place of the policy's while it is open.
    """

    sampler: BatchSampler
    held: HandOver

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        with self.held():
            return self.sampler.respond(prompts, until)


class Backend(ABC):
    """Samples from the policy of one trainer, in rounds of training and in evaluations.

    `AlignOPSDTrainer.make_backend` returns the one that a configuration chooses. Override it to use another.
    """

    @abstractmethod
    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        """Makes a sampler of the policy.

        Args:
            temperature: of sampling; 0 decodes greedily.
            prefixes: an open cache of `prefixes`; `None` if there is none.
        """

    def ready(self) -> AbstractContextManager[None]:
        """Keeps the back end ready, with the policy's current weights, while the context is open. A collective."""
        return nullcontext()

    def prefixes(self, caches: int = 1) -> AbstractContextManager[PrefixCache | None]:
        """Opens a cache of encoded prompts, which is valid until the next update; `None` where the policy does not
        sample in this process.

        Args:
            caches: the number of caches that share the device's memory: 2 where the teacher has weights of its own.
        """
        return nullcontext()

    def rows_at_once(
        self, prompts: Sequence[Sequence[int]], limit: int, least: int, prefixes: PrefixCache | None = None
    ) -> int:
        """Returns how many of the prompts one call should hold, with responses of ``limit`` tokens. An engine that
        schedules its requests by itself takes all.

        Args:
            least: the number of episodes that are played side by side.
        """
        return len(prompts)

    def of_teacher(self, sampler: Any, weights: TeacherWeights) -> AnySampler:
        """Makes the teacher's sampler from the policy's. Its calls and the policy's may alternate: the weights change
        places for each call. A collective."""
        return TeacherSampler(sampler, weights.in_place)

    def hand_over(self, weights: TeacherWeights) -> HandOver | None:
        """Returns what gives an engine the teacher's weights for a whole play; `None` where the teacher can be asked
        beside the policy."""
        return None

    def close(self) -> None:  # noqa: B027 (most back ends have no connections)
        """Ends connections. The next sampler opens new ones."""


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
        teacher: weights of a separate teacher; `None` if the policy is its own teacher.
        slots: number of episodes side by side.
    """

    config: AlignOPSDConfig
    backend: Backend
    teacher: TeacherWeights | None
    slots: int

    @contextmanager
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
        return SortedByLength(sampler, fits)

    @contextmanager
    def evaluation(self, temperature: float) -> Generator[AnySampler]:
        """Opens the sampler of an evaluation."""
        with self.backend.ready(), self.backend.prefixes() as prefixes:
            yield self.backend.sampler(temperature, self.config.max_completion_length, prefixes)

    def _of_teacher(self, sampler: Any) -> Any:
        return sampler if self.teacher is None else self.backend.of_teacher(sampler, self.teacher)

    def close(self) -> None:
        """Closes connections of the back end; the next round or evaluation opens new ones."""
        self.backend.close()

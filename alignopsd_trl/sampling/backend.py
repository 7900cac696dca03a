"""The interface of decoding back ends, a class with one abstract method `sampler`, and samplers of a teacher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import AnySampler, BatchSampler, Responses
from alignopsd_trl.scoring.prefix_cache import PrefixCache
from alignopsd_trl.scoring.teacher_weights import TeacherWeights

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
            max_tokens: of a response.
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

    def together(self, sampler: BatchSampler) -> BatchSampler:
        """Makes the sampler fit for calls that all processes make together."""
        return sampler

    def close(self) -> None:  # noqa: B027 (most back ends have no connections)
        """Ends connections. The next sampler opens new ones."""

"""What samples from a trainer's policy, and from its teacher, while the weights stand still."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.policy.process_group import ProcessGroup
from alignopsd_trl.policy.slots import SlotSampler
from alignopsd_trl.policy.teacher_weights import ContinuousTeacher, SilentTeacher, TeacherSampler, TeacherWeights
from alignopsd_trl.rollout import AnySampler, BatchSampler, Sampler, SortedByLength
from alignopsd_trl.training.continuous import ContinuousEngine
from alignopsd_trl.training.round import Snapshot
from alignopsd_trl.trl_compat.own_loop import kept_prefixes, loop_sampler, rows_at_once, slot_sampler
from alignopsd_trl.trl_compat.sampling import (
    EngineSampler,
    awake,
    join_servers,
    push_weights,
    sampling_options,
    stepping_sampler,
)

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer


def engine_of(trainer: Trainer, processes: ProcessGroup) -> ContinuousEngine | None:
    """vLLM as each process asks it by itself; `None` where all processes sample together, or without vLLM."""
    if not (trainer.use_vllm and trainer.args.continuous_play):
        return None
    if trainer.vllm_mode == "server":
        join_servers(trainer, trainer.args.server_addresses)
    return ContinuousEngine(
        trainer.args,
        processes,
        partial(push_weights, trainer),
        partial(sampling_options, trainer),
        partial(stepping_sampler, trainer),
    )


@dataclass(eq=False)
class Samplers:
    """Makes samplers.

    Args:
        trainer: whose policy samples, at its temperature and token limit.
        make: makes what samples from the policy: by temperature, token limit and kept prefixes.
        teacher: weights of a teacher of its own; `None` if the policy is its own.
        engine: of `engine_of`.
        slots: episodes side by side.
    """

    trainer: Trainer
    make: Callable[..., AnySampler]
    teacher: TeacherWeights | None
    engine: ContinuousEngine | None
    slots: int

    def own(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        """The policy through the project's own loop where ``prefixes`` are kept, else through TRL's path."""
        if prefixes is not None:
            made = slot_sampler if self.trainer.args.continuous_play else loop_sampler
            return made(self.trainer, temperature, max_tokens, prefixes)
        if self.engine is not None:
            return self.engine.sampler(temperature, max_tokens)
        return EngineSampler(self.trainer, temperature, max_tokens)

    def thinker(self, prefixes: PrefixCache | None = None) -> BatchSampler:
        """What samples privileged thinking, with its own token limit."""
        trainer = self.trainer
        limit = trainer.args.teacher_max_completion_length or trainer.max_completion_length
        fits = partial(rows_at_once, trainer, limit=limit, least=self.slots, prefixes=prefixes)
        sampler = self.make(trainer.temperature, limit, prefixes)
        if isinstance(sampler, SlotSampler):
            return self._of_teacher(replace(sampler, rows=fits), limit)
        thinker = SortedByLength(self._of_teacher(sampler, limit), fits)
        return thinker if self.engine is None else self.engine.together(thinker)

    def _of_teacher(self, sampler: Any, limit: int) -> Any:
        """The same sampler with the teacher's weights; ``limit`` are the tokens of a response."""
        if self.teacher is None:
            return sampler
        if self.engine is not None and self.trainer.args.vllm_teacher_addresses:
            return self.engine.sampler(self.trainer.temperature, limit, initial=True)
        if self.trainer.use_vllm:
            return SilentTeacher(self.trainer.args.teacher_model_kind)
        return (ContinuousTeacher if isinstance(sampler, Sampler) else TeacherSampler)(sampler, self.teacher)

    @contextlib.contextmanager
    def snapshot(self) -> Generator[Snapshot]:
        """While a round is played and credited."""
        temperature, limit = self.trainer.temperature, self.trainer.max_completion_length
        caches = 1 if self.teacher is None else 2
        with self._awake(), kept_prefixes(self.trainer, caches) as prefixes:
            sampler = self.make(temperature, limit, prefixes)
            if self.teacher is None:
                yield Snapshot(sampler, self.thinker(prefixes), prefixes)
                return
            with kept_prefixes(self.trainer, caches) as own:
                player = self._of_teacher(self.make(temperature, limit, own), limit)
                yield Snapshot(sampler, self.thinker(own), teacher=player)

    @contextlib.contextmanager
    def evaluation(self, temperature: float) -> Generator[AnySampler]:
        """While an evaluation is played."""
        kept = kept_prefixes(self.trainer) if self.trainer.args.continuous_play else contextlib.nullcontext()
        with self._awake(), kept as prefixes:
            yield self.make(temperature, self.trainer.max_completion_length, prefixes)

    @contextlib.contextmanager
    def _awake(self) -> Generator[None]:
        """vLLM's engine or servers, where they sample, are ready and have the policy's weights."""
        with awake(self.trainer):
            if self.engine is not None:
                self.engine.push_weights(self.trainer.state.global_step)
            yield

    def close(self) -> None:
        """Ends the connections to servers; who samples next opens new ones."""
        if self.engine is not None:
            self.engine.close()

"""Samples from a trainer's policy: through TRL by vLLM in the process or on a server or transformers' ``generate``, or
with the project's own loop."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.common import strategies
from alignopsd_trl.common.patched import patched
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.rollout.sampler import AnySampler, Responses, SamplerDown
from alignopsd_trl.sampling.backend import Backend, HandOver, TeacherSampler
from alignopsd_trl.sampling.loop import PLAIN, LoopSampler, by_options_alone
from alignopsd_trl.scoring.prefix_cache import CacheLimits, PrefixCache, cache_limits, free_memory, token_bytes
from alignopsd_trl.scoring.teacher import TeacherWeights
from alignopsd_trl.scoring.trl_trainer import computes_in, policy_of, why_not_shared, without_checkpointing

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer

TEACHERS = -2
"""In place of the update whose weights vLLM has, in TRL's ``_last_loaded_step``: it has the teacher's."""


class EngineSampler:
    """A `rollout.BatchSampler` of the trained policy through TRL's own path: transformers (also with continuous
    batching) or vLLM. All processes must call it equally often and with equally many prompts.
    """

    _instead: tuple[Any] | None = None

    def __init__(self, trainer: Trainer, temperature: float, max_tokens: int):
        self._trainer, self._temperature, self._max_tokens = trainer, temperature, max_tokens

    def instead(self, request: Any) -> EngineSampler:
        """Returns a sampler of another adapter of the engine, by vLLM's request; `None` is no adapter."""
        other = copy(self)
        other._instead = (request,)
        return other

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        trainer = self._trainer
        if trainer.is_fsdp_enabled:  # makes transformers' generate go on until all processes have finished
            policy_of(trainer)._is_fsdp_managed_module = True
            if trainer.use_vllm:
                strategies.reshard(trainer.model)
        with self._settings(), by_options_alone(policy_of(trainer)), _without_ended_trackers(trainer):
            return Responses(*trainer._generate_single_turn(prompts, None, {}, num_generations=1))

    def _settings(self) -> AbstractContextManager[None]:
        trainer, temperature = self._trainer, self._temperature
        if trainer.use_vllm:
            own = {"temperature": temperature, "max_completion_length": self._max_tokens, "instead": self._instead}
            return patched(trainer.vllm_generation, **own)
        greedy: dict[str, Any] = {"do_sample": False} if temperature == 0 else {"temperature": temperature}
        return patched(trainer.generation_config, **greedy, max_new_tokens=self._max_tokens)


class EngineBackend(Backend):
    """vLLM through TRL's own path. All processes sample each turn of all episodes together."""

    def __init__(self, trainer: Trainer, processes: ProcessGroup):
        self._trainer, self._processes = trainer, processes
        self._taught: Any = None

    @contextlib.contextmanager
    def ready(self) -> Generator[None]:
        with awake(self._trainer):
            self.push(self._trainer.state.global_step)
            yield

    def push(self, update: int) -> None:
        """Pushes the policy's weights to vLLM. A collective.

        Raises:
            SamplerDown: on all processes.
        """
        self._processes.together(partial(push_weights, self._trainer), SamplerDown)

    def close(self) -> None:
        """Lets the next generation push the weights again: training may end with those of an earlier update."""
        self._trainer._last_loaded_step = -1

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        return EngineSampler(self._trainer, temperature, max_tokens)

    def of_teacher(self, sampler: Any, weights: TeacherWeights) -> AnySampler:
        if not self._serves:
            return TeacherSampler(sampler, partial(self._held, weights))
        return sampler.instead(self._request(weights))

    def hand_over(self, weights: TeacherWeights) -> HandOver | None:
        return None if self._serves else partial(self._held, weights)

    @property
    def _serves(self) -> bool:
        return getattr(getattr(self._trainer, "vllm_generation", None), "serves", False)

    def _request(self, weights: TeacherWeights) -> Any:
        """Returns vLLM's request for the teacher's adapter; `None` where it is the base weights."""
        if weights.adds_nothing:
            return None
        if self._taught is None:
            with weights.swapped():
                self._taught = self._trainer.vllm_generation.take(None)
        return self._taught

    @contextlib.contextmanager
    def _held(self, weights: TeacherWeights) -> Generator[None]:
        trainer = self._trainer
        if trainer._last_loaded_step != TEACHERS:
            trainer._last_loaded_step = -1  # whatever happens now, the engine has not the policy's
            with weights.swapped():
                self.push(trainer.state.global_step)
        trainer._last_loaded_step = trainer.state.global_step  # else TRL would push the policy's
        try:
            yield
        finally:
            trainer._last_loaded_step = TEACHERS


def _without_ended_trackers(trainer: Trainer) -> AbstractContextManager[None]:
    """Removes trackio from the trackers while it has no run, as in an evaluation after training. TRL logs the time of
    each generation, and trackio would raise."""
    given = trainer.args.report_to or ()
    if "trackio" in given:
        import trackio

        if trackio.context_vars.current_run.get() is None:
            return patched(trainer.args, report_to=[name for name in given if name != "trackio"])
    return contextlib.nullcontext()


@contextlib.contextmanager
def awake(trainer: Trainer) -> Generator[None]:
    """Keeps a vLLM engine with sleep mode awake. It wakes once, takes the weights with the first generation, and sleeps
    again at the end. TRL itself puts it to sleep after each call, which would push the whole policy at every turn."""
    engine: Any = getattr(trainer, "vllm_generation", None)
    if not (trainer.use_vllm and trainer.vllm_mode == "colocate" and engine.enable_sleep_mode):
        yield
        return
    torch.cuda.empty_cache()
    engine.llm.wake_up()
    engine.enable_sleep_mode, engine._llm_weights_sleeping, trainer._last_loaded_step = False, False, -1
    try:
        yield
    finally:
        engine.llm.sleep(level=2)
        engine.enable_sleep_mode, engine._llm_weights_sleeping = True, True


def push_weights(trainer: Trainer) -> int:
    """Pushes the policy's weights to vLLM if an update has changed them, as TRL does before it generates; returns their
    number of updates. A collective.

    Raises:
        SamplerDown: on the first process, if the server does not take them.
    """
    if trainer.state.global_step == trainer._last_loaded_step:
        return trainer._last_loaded_step
    if trainer.is_fsdp_enabled:
        strategies.reshard(trainer.model)
    engine, problems = trainer.vllm_generation, []
    with _walked_to_the_end(engine, problems if trainer.vllm_mode == "server" else None):
        engine.sync_weights()
    if problems:
        raise SamplerDown(f"vLLM's server did not take the weights ({problems[0]}); start it again and resume")
    trainer._last_loaded_step = trainer.state.global_step
    return trainer._last_loaded_step


@contextlib.contextmanager
def _walked_to_the_end(engine: Any, problems: list[Exception] | None) -> Generator[None]:
    """Adds an error of the first process's client to ``problems`` once the process has passed all parameters, since
    gathering one is a collective. With `None` errors are raised."""
    passes: list[Any] = []
    inner = engine._iter_named_params

    def params() -> Any:
        passes.append(inner())
        return passes[-1]

    try:
        with patched(engine, _iter_named_params=params):
            yield
    except Exception as error:  # TRL raises plain exceptions
        if problems is None:
            raise
        for one in passes:
            for _ in one:
                pass
        problems.append(error)


# The project's own loop, within memory limits for keys and values


def samples_plainly(trainer: Trainer) -> bool:
    """Returns whether responses come from the full distribution of an unsharded model in this process. A `LoopSampler`
    may then replace transformers' ``generate``."""
    if trainer.use_vllm or trainer.use_transformers_continuous_batching:
        return False
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or why_not_shared(trainer):
        return False
    config, changed = trainer.generation_config, trainer.args.generation_kwargs or trainer.args.cache_implementation
    plain = all(getattr(config, name) in values for name, values in PLAIN.items())
    return config.do_sample and plain and not changed


class OwnBackend(Backend):
    """Samples without an engine: with the project's own loop where the policy `samples_plainly`, elsewhere with
    transformers' ``generate``."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    def sampler(self, temperature: float, max_tokens: int, prefixes: PrefixCache | None = None) -> AnySampler:
        trainer = self._trainer
        if prefixes is None:
            return EngineSampler(trainer, temperature, max_tokens)
        return LoopSampler(
            prefixes,
            temperature,
            max_tokens,
            trainer.eos_token_ids,
            partial(self._fitting, prefixes.limits, max_tokens) if prefixes.limits.bounds_rollout else len,
            trainer.accelerator.autocast,  # around all steps, so that weights are rounded once, not at each token
        )

    @contextlib.contextmanager
    def prefixes(self, caches: int = 1) -> Generator[PrefixCache | None]:
        trainer = self._trainer
        if not samples_plainly(trainer):
            yield None
            return
        with without_checkpointing(trainer):
            yield PrefixCache(
                policy_of(trainer),
                trainer.processing_class.pad_token_id,
                trainer.args.tokens_per_forward,
                computes_in(trainer),
                self._limits(caches),
            )

    def rows_at_once(
        self, prompts: Sequence[Sequence[int]], limit: int, least: int, prefixes: PrefixCache | None = None
    ) -> int:
        """Returns the number of rows that fit the loop's cache; ``least`` for ``generate``."""
        if not (self._trainer.model.training and samples_plainly(self._trainer)):
            return least
        kept = prefixes.limits if prefixes else self._limits()
        fitting = self._fitting(kept, limit, prompts)
        return fitting if kept.bounds_rollout else max(least, fitting)

    @property
    def _token_bytes(self) -> int:
        return token_bytes(policy_of(self._trainer).config.get_text_config(), computes_in(self._trainer).itemsize)

    def _fitting(self, kept: CacheLimits, limit: int, prompts: Sequence[Sequence[int]]) -> int:
        """Returns the number of prompts that fit a batch with responses of ``limit`` tokens, at least one."""
        longest = max(map(len, prompts), default=0) + limit
        return max(kept.batch // (longest * self._token_bytes), 1)

    def _limits(self, caches: int = 1) -> CacheLimits:
        """Returns the limits of each of several caches, from the memory that is free before a round."""
        args = self._trainer.args
        longest = (args.max_prompt_length + args.max_completion_length) * self._token_bytes
        return cache_limits(free_memory(self._trainer.accelerator.device), longest, caches)

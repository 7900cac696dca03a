"""Samples from a trainer's policy with the project's own loop, within memory limits for keys and values."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from alignopsd_trl.rollout.sampler import AnySampler
from alignopsd_trl.sampling.backend import Backend
from alignopsd_trl.sampling.loop import PLAIN, LoopSampler
from alignopsd_trl.sampling.trl_engine import EngineSampler
from alignopsd_trl.scoring.prefix_cache import CacheLimits, PrefixCache, cache_limits, free_memory, token_bytes
from alignopsd_trl.scoring.trl_trainer import (
    attention_of,
    computes_in,
    policy_of,
    text_config,
    why_not_shared,
    without_checkpointing,
)

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer


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
                attention_of(trainer),
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
        return token_bytes(text_config(self._trainer), computes_in(self._trainer).itemsize)

    def _fitting(self, kept: CacheLimits, limit: int, prompts: Sequence[Sequence[int]]) -> int:
        """Returns the number of prompts that fit a batch with responses of ``limit`` tokens, at least one."""
        longest = max(map(len, prompts), default=0) + limit
        return max(kept.batch // (longest * self._token_bytes), 1)

    def _limits(self, caches: int = 1) -> CacheLimits:
        """Returns the limits of each of several caches, from the memory that is free before a round."""
        args = self._trainer.args
        longest = (args.max_prompt_length + args.max_completion_length) * self._token_bytes
        return cache_limits(free_memory(self._trainer.accelerator.device), longest, caches)

"""The training process's own model as a sampler, through `decoding.sample`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.policy.decoding import sample
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.reading import Reader
from alignopsd_trl.rollout import Responses

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def frozen_weights_cached(model: torch.nn.Module) -> Generator[None]:
    """While it is entered, an autocast around it casts the frozen weights under an adapter once, as it does trained
    ones: it caches casts only of float32 leaves that require a gradient. No gradient is computed meanwhile."""
    frozen = [value for value in model.parameters() if value.dtype == torch.float32 and not value.requires_grad]
    try:
        for value in frozen:
            value.requires_grad_(True)
        with torch.no_grad():
            yield
    finally:
        for value in frozen:
            value.requires_grad_(False)


@dataclass(frozen=True)
class LoopSampler:
    """A [`~alignopsd_trl.rollout.BatchSampler`] that decodes in this process.

    Args:
        model, temperature, max_tokens, end_ids, pad_id, attention, budget: as in `decoding.sample`.
        rows: of some prompts, how many are sampled at once; all of them by default.
        context: held around all steps, as autocast is.
        prefixes: what this snapshot of the model made of earlier prompts; nothing is kept between calls by default.
    """

    model: PreTrainedModel
    temperature: float
    max_tokens: int
    end_ids: Sequence[int]
    pad_id: int
    attention: str = "sdpa"
    budget: int = 4096
    prefixes: PrefixCache | None = None
    rows: Callable[[Sequence[Sequence[int]]], int] = len
    context: Callable[[], AbstractContextManager] = nullcontext

    def respond(self, prompts: Sequence[Sequence[int]], until: Reader | None = None) -> Responses:
        size = max(self.rows(prompts), 1)
        parts = [self._respond(prompts[first : first + size], until) for first in range(0, len(prompts), size)]
        return Responses(*([one for part in column for one in part] for column in zip(*parts, strict=True)))

    def _respond(self, prompts: Sequence[Sequence[int]], until: Reader | None) -> tuple[list, list]:
        with self.context(), frozen_weights_cached(self.model):
            return sample(
                self.model,
                prompts,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
                end_ids=self.end_ids,
                pad_id=self.pad_id,
                attention=self.attention,
                budget=self.budget,
                prefixes=self.prefixes,
                until=until,
            )

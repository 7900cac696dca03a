"""The order of tasks and the times of checkpoints, which let a resumed run repeat an uninterrupted one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from alignopsd_trl.common.statistics import spread


class EpochSampler(RepeatSampler):
    """TRL's sampler, which draws a new order per iteration, with the epoch set: a run that resumes in the third epoch
    gets the third order instead of the first. Tasks are spread over ``kinds`` if there are any."""

    epoch = 0
    kinds: Sequence[Hashable] = ()

    @classmethod
    def like(cls, sampler: Any) -> EpochSampler:
        return cls(
            sampler.data_source,
            sampler.mini_repeat_count,
            sampler.batch_size,
            sampler.repeat_count,
            sampler.shuffle,
            sampler.seed,
        )

    def __iter__(self) -> Iterator[int]:
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed)
            for _ in range(self.epoch):
                torch.randperm(self.num_samples, generator=self.generator)
        if not (self.kinds and self.shuffle):
            return super().__iter__()
        copy = torch.Generator().set_state(self.generator.get_state())
        order = torch.randperm(self.num_samples, generator=copy).tolist()  # as TRL is about to draw it
        placed = dict(zip(order, spread(order, self.kinds), strict=True))
        return map(placed.__getitem__, super().__iter__())


def round_ends(state: Any, updates: int) -> bool:
    """Returns whether the update that was just made is the last one of its round, or of training. After each
    ``updates`` updates an update and a round end together."""
    return state.global_step % updates == 0 or state.global_step >= state.max_steps


class WholeRounds(TrainerCallback):
    """Delays a checkpoint in the middle of a rollout round to the round's end. No rollout is saved, so a run that
    resumed in its middle would play it again with other weights."""

    def __init__(self, updates: int):
        self._updates, self._due = updates, False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._due = self._due or control.should_save
        ends = round_ends(state, self._updates)
        control.should_save = self._due and ends
        self._due = self._due and not ends

"""The order of tasks and of checkpoints, such that a resumed run repeats what an uninterrupted one does."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """TRL's sampler, which draws a new order each time it is iterated, told which epoch it is in: a run that resumes in
    the third epoch gets the third order and not the first again."""

    epoch = 0

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
        return super().__iter__()


class WholeRounds(TrainerCallback):
    """Puts a checkpoint that would fall into the middle of a rollout round off to its end: nothing of a rollout is
    saved, so a run that resumed in its middle would play it anew with other weights."""

    def __init__(self, updates: Fraction):
        self._updates = updates.numerator  # after so many an update and a round end together
        self._due = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._due = self._due or control.should_save
        ends = state.global_step % self._updates == 0 or state.global_step >= state.max_steps
        control.should_save = self._due and ends
        self._due = self._due and not ends

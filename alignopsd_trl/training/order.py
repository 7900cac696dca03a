"""The order of tasks and the times of checkpoints, which let a resumed run repeat an uninterrupted one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
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


class Upcoming:
    """Predicts the tasks of the next round without touching the data loader, so that a resumed run still skips trained
    tasks there.

    Args:
        order: sampler of the tasks; without a seed, its order can't be predicted.
        accumulated: batches of the data loader in one update.
        process, processes: rank whose part of a round is returned, and number of ranks.
    """

    def __init__(self, order: EpochSampler, accumulated: int, process: int, processes: int):
        self._order, self._accumulated = order, accumulated
        self._process, self._processes = process, processes
        self._rounds = order.num_samples // order.batch_size  # rounds of an epoch
        self._known: tuple[int, list[int]] = (-1, [])

    def begin(self, epoch: int, batches: int) -> None:
        """Sets the position: this epoch, after this many of its batches."""
        self._epoch, self._round = epoch, batches // self._order.repeat_count

    def after(self) -> tuple[list[Any], int]:
        """Returns the rows of the next round, and the number of updates until it starts. Call it once in each round."""
        here = self._update()
        self._round += 1
        if self._round == self._rounds:
            self._epoch, self._round = self._epoch + 1, 0
        size = self._order.batch_size
        tasks = self._tasks(self._epoch)[self._round * size : (self._round + 1) * size]
        rows = [task for task in tasks for _ in range(self._order.mini_repeat_count)]
        share = len(rows) // self._processes
        source: Any = self._order.data_source
        return [source[row] for row in rows[self._process * share :][:share]], self._update() - here

    def _update(self) -> int:
        batches = self._order.repeat_count
        an_epoch = -(-self._rounds * batches // self._accumulated)
        return self._epoch * an_epoch + self._round * batches // self._accumulated

    def _tasks(self, epoch: int) -> list[int]:
        """Returns the indices of an epoch's tasks in their order."""
        if self._known[0] != epoch:
            order = self._order
            once = EpochSampler(order.data_source, 1, order.batch_size, 1, order.shuffle, order.seed)
            once.epoch, once.kinds = epoch, order.kinds
            self._known = epoch, list(once)
        return self._known[1]


def round_ends(state: Any, updates: int) -> bool:
    """Returns whether the update that was just made is the last one of its round (or of training); a round has
    ``updates`` updates."""
    return state.global_step % updates == 0 or state.global_step >= state.max_steps


class WholeRounds(TrainerCallback):
    """Delays a checkpoint in the middle of a rollout round to the round's end. No rollout is saved, so a run that
    resumed in its middle would play it again with other weights."""

    def __init__(self, updates: Fraction):
        self._updates = updates.numerator  # updates until an update and a round end together
        self._due = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._due = self._due or control.should_save
        ends = round_ends(state, self._updates)
        control.should_save = self._due and ends
        self._due = self._due and not ends

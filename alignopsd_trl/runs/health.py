"""Conditions that end a run: rounds without usable episodes, too many failed ones, numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import get_total_norm

from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.common.strategies import held
from alignopsd_trl.turns import Trajectory

ROUNDS = 3  # rounds behind the share of failed episodes


class RunStopped(RunEnded):
    """Raised when a run can't go on. The message gives the reason and the checkpoint to resume from."""


@dataclass(frozen=True)
class Tally:
    """Counts of the episodes of one round: all, failed by their environment, usable for training."""

    episodes: int
    failed: int
    usable: int
    message: str = ""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Tally:
        return cls(
            episodes=len(trajectories),
            failed=sum(one.failed for one in trajectories),
            usable=sum(bool(one.turns) and not one.failed for one in trajectories),
            message=next(filter(None, map(_reason, trajectories)), ""),
        )

    @classmethod
    def total(cls, parts: Sequence[Tally]) -> Tally:
        return cls(
            sum(part.episodes for part in parts),
            sum(part.failed for part in parts),
            sum(part.usable for part in parts),
            next((part.message for part in parts if part.message), ""),
        )


def _reason(trajectory: Trajectory) -> str:
    if trajectory.message:
        told = repr(trajectory.task) in trajectory.message
        return trajectory.message if told else f"task {trajectory.task!r}: {trajectory.message}"
    return ""


class FailedShare:
    """The share of failed episodes; ``recent`` has ``[failed, episodes]`` of up to `ROUNDS` rounds, for checkpoints."""

    def __init__(self, limit: float):
        self.limit = limit
        self.recent: list[list[int]] = []

    def problem(self, tally: Tally) -> str | None:
        """Returns the reason why the run must end after this round; `None` if it need not."""
        self.recent = [*self.recent, [tally.failed, tally.episodes]][-ROUNDS:]
        if tally.usable == 0:
            return f"no episode of this round can be trained on. The first reason: {tally.message}"
        failed, episodes = (sum(column) for column in zip(*self.recent, strict=True))
        if len(self.recent) == ROUNDS and failed > self.limit * episodes:
            return (
                f"{failed} of the {episodes} episodes of the last {ROUNDS} rounds failed, more than "
                f"max_failed_share={self.limit:g} allows. The first reason: {tally.message}"
            )
        return None


class Decay:
    """Reports once that a number gets worse: its mean over the last rounds falls below a floor, which maps the mean of
    the first rounds to the least mean that is no decay."""

    def __init__(self, name: str, floor: Callable[[float], float], digits: int = 2) -> None:
        self._name, self._floor, self._digits = name, floor, digits
        self._values: list[float] = []
        self._told = False

    def problem(self, value: float) -> str | None:
        """Returns the message after a round with this value; `None` without decay."""
        self._values.append(value)
        if self._told or len(self._values) < 2 * ROUNDS:
            return None
        first, last = (sum(part) / ROUNDS for part in (self._values[:ROUNDS], self._values[-ROUNDS:]))
        self._told = last < self._floor(first)
        digits = self._digits
        return f"{self._name} fell from {first:.{digits}f} to {last:.{digits}f}" if self._told else None


@torch.no_grad()
def weights_are_finite(model: torch.nn.Module) -> bool:
    """Returns whether this process's part of the weights is finite; synchronises with the device once."""
    parts = [part for part in map(held, model.parameters()) if part.is_floating_point() and part.numel()]
    return bool(get_total_norm(parts, norm_type=math.inf).isfinite())

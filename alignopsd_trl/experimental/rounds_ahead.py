"""Plays the next round while the one before it is credited and optimised (``rounds_ahead``)."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import NamedTuple

from alignopsd_trl.experimental.server import SECONDS_TO_END, in_background
from alignopsd_trl.rollout.driver import SLICE
from alignopsd_trl.rollout.player import ENDS
from alignopsd_trl.training.rollouts import Rollouts, ToPlay
from alignopsd_trl.turns import Trajectory


class Played(NamedTuple):
    """A round that was played ahead.

    Attributes:
        tasks: of its rows.
        counters: what the environments added to theirs meanwhile.
    """

    tasks: list[str]
    trajectories: list[Trajectory]
    counters: dict[str, float]


class RolloutsAhead(Rollouts):
    """Plays rounds in a thread of their own, the next one while the main thread goes on with the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ahead: Future[Played] | None = None

    def close(self) -> None:
        self._ended(SECONDS_TO_END)
        self._ahead = None
        super().close()

    def _played(self, asked: ToPlay) -> list[Trajectory]:
        """Takes up the round that was begun; the first one is begun here."""
        if self._ahead is None:
            self.begin(asked)
        self.settle()
        assert self._ahead is not None, "it was begun"
        taken, self._ahead = self._ahead, None
        found = self.processes.together(taken.result, ENDS)
        if found.tasks != [row["task_id"] for row in asked.rows]:
            raise RuntimeError(
                "other tasks were played ahead than the data loader gives; this is a bug, please report it"
            )
        self._counted = found.counters
        return found.trajectories

    def begin(self, asked: ToPlay) -> None:
        """Begins to play a round, which `play` takes up."""
        self.environments  # noqa: B018 (opened before its counters are read)
        self.counters.take()
        self._bar = self._bar_of(asked)
        self._shown, self._bar.disable = not self._bar.disable, True

        def act() -> Played:
            trajectories = self.play_groups(asked, alone=self._bar)
            return Played([row["task_id"] for row in asked.rows], trajectories, self.counters.take())

        self._ahead = in_background(act, "ahead")

    def settle(self) -> None:
        """Waits until the rounds of all processes have ended, and synchronises once a minute. A collective."""
        if self._ahead is not None:
            self._bar.disable = not self._shown
            while self.processes.agree(int(not self._ended(SLICE))):
                pass

    def _ended(self, seconds: float) -> bool:
        return self._ahead is None or bool(wait([self._ahead], seconds).done)

    def take_counters(self) -> dict[str, float]:
        return self._counted

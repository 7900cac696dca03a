"""Plays the next round while the one before it is credited and optimised (``rounds_ahead``)."""

from __future__ import annotations

from typing import NamedTuple

from alignopsd_trl.experimental.ahead import Ahead
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
        self._ahead: Ahead[Played] = Ahead(self.processes)

    def close(self) -> None:
        self._ahead.close()
        super().close()

    def _played(self, asked: ToPlay) -> list[Trajectory]:
        """Takes up the round that was begun; the first one is begun here."""
        if not self._ahead.begun:
            self.begin(asked)
        self.settle()
        found = self._ahead.take()
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

        self._ahead.begin(act)

    def settle(self) -> None:
        if self._ahead.begun:
            self._bar.disable = not self._shown
            self._ahead.settle()

    def take_counters(self) -> dict[str, float]:
        return self._counted

"""The writer's view of TRL's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat import Trainer


class TrainerLog:
    """TRL's log: numbers since its last line, and the table of completions."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer

    @property
    def callbacks(self) -> Sequence[Any]:
        """The trainer's callbacks, among them the trackers."""
        return self._trainer.callback_handler.callbacks

    def value(self, mode: str, name: str, value: float) -> None:
        """Adds a number to the next line of ``train`` or ``eval``; a line prints means."""
        self._trainer._metrics[mode][name].append(value)

    def samples(self, column: str, values: list[Any]) -> None:
        """Extends a column of the table: ``prompt``, ``completion`` or ``advantages``."""
        log: Any = self._trainer._logs
        log[column].extend(values)

    def reward_samples(self, name: str, values: list[float]) -> None:
        """Extends the column of a reward function."""
        log: Any = self._trainer._logs
        log["rewards"][name].extend(values)

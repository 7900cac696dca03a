"""Runs calls in the background while the processes of a run go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.rollout import ENDS
from alignopsd_trl.rollout.driver import SLICE

SECONDS_TO_END = 5.0
"""Seconds that a pool or a round that is closed waits for calls whose results are dropped."""
Result = TypeVar("Result")


def in_background(act: Callable[[], Result], name: str) -> Future[Result]:
    """Runs a call in a daemon thread: unlike with `concurrent.futures`, a call that hangs does not keep the process
    from ending."""
    result: Future[Result] = Future()

    def run() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(act())
            except BaseException as error:  # the future raises it
                result.set_exception(error)

    threading.Thread(target=run, daemon=True, name=name).start()
    return result


class Ahead(Generic[Result]):
    """Runs one call at a time per process in the background. The call must make no collective and use no model.

    Args:
        processes: each begins a call and takes its result.
    """

    def __init__(self, processes: ProcessGroup):
        self._processes = processes
        self._result: Future[Result] | None = None

    @property
    def begun(self) -> bool:
        """Whether there is a call whose result was not taken."""
        return self._result is not None

    def begin(self, act: Callable[[], Result]) -> None:
        self._result = in_background(act, "ahead")

    def settle(self) -> None:
        """Waits until the calls of all processes have ended, and synchronises once a minute. A collective."""
        while self._processes.agree(int(not self._ended(SLICE))):
            pass

    def take(self) -> Result:
        """Returns the result of the call that was begun. A collective.

        Raises:
            ENDS: on all processes, if the call raised one of them on any.
        """
        self.settle()
        assert self._result is not None
        taken, self._result = self._result, None
        return self._processes.together(taken.result, ENDS)

    def close(self) -> None:
        """Drops the call and waits `SECONDS_TO_END` for its end."""
        self._ended(SECONDS_TO_END)
        self._result = None

    def _ended(self, seconds: float) -> bool:
        return self._result is None or bool(wait([self._result], seconds).done)

"""Runs a call in the background while the processes of a run go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.rollout import ENDS
from alignopsd_trl.rollout.driver import SLICE

SECONDS_TO_END = 5.0
"""Seconds that `close` waits for a call whose result is dropped."""
Result = TypeVar("Result")


class Ahead(Generic[Result]):
    """Runs one call at a time per process in a thread. The call must make no collective and use no model.

    The thread is a daemon: a call that hangs does not keep a program from ending.

    Args:
        processes: each begins a call and takes its result.
    """

    def __init__(self, processes: ProcessGroup):
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._result: Future[Result] = Future()

    @property
    def begun(self) -> bool:
        """Whether there is a call whose result was not taken."""
        return self._thread is not None

    def begin(self, act: Callable[[], Result]) -> None:
        result: Future[Result] = Future()

        def run() -> None:
            try:
                result.set_result(act())
            except BaseException as error:  # `take` raises it
                result.set_exception(error)

        self._result, self._thread = result, threading.Thread(target=run, daemon=True, name="ahead")
        self._thread.start()

    def settle(self) -> None:
        """Waits until the calls of all processes have ended, and synchronises once a minute. A collective."""
        while self._processes.agree(int(not self._ended(SLICE))):
            pass

    def take(self) -> Result:
        """Returns the result of the call. A collective.

        Raises:
            ENDS: on all processes, if the call raised one of them on any.
        """
        self.settle()
        self._thread = None
        return self._processes.together(self._result.result, ENDS)

    def close(self) -> None:
        """Drops the call and waits `SECONDS_TO_END` for its end."""
        self._ended(SECONDS_TO_END)
        self._thread = None

    def _ended(self, seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

"""Has something done in the background while the processes of a run go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.rollout import ENDS
from alignopsd_trl.rollout.driver import SLICE

SECONDS_TO_END = 5.0
"""Seconds that closing waits for what can't be used any more."""
Found = TypeVar("Found")


class Ahead(Generic[Found]):
    """One call a process at a time, in a thread of its own. It makes no collective and touches no model.

    The thread is a daemon: a call that hangs does not keep a program from ending.

    Args:
        processes: each of which begins a call and takes what it returns.
    """

    def __init__(self, processes: ProcessGroup):
        self._processes = processes
        self._thread: threading.Thread | None = None
        self._found: Future[Found] = Future()

    @property
    def begun(self) -> bool:
        """Whether there is a call that nobody has taken."""
        return self._thread is not None

    def begin(self, act: Callable[[], Found]) -> None:
        found: Future[Found] = Future()

        def run() -> None:
            try:
                found.set_result(act())
            except BaseException as error:  # whoever takes it is to meet it
                found.set_exception(error)

        self._found, self._thread = found, threading.Thread(target=run, daemon=True, name="ahead")
        self._thread.start()

    def settle(self) -> None:
        """Waits until the calls of all processes have ended, which hear of each other once a minute. A collective."""
        while self._processes.agree(int(not self._ended(SLICE))):
            pass

    def take(self) -> Found:
        """What the call returned. A collective.

        Raises:
            ENDS: on all processes, if it raised that on one.
        """
        self.settle()
        self._thread = None
        return self._processes.together(self._found.result, ENDS)

    def close(self) -> None:
        """Forgets the call, and waits for its end, not long."""
        self._ended(SECONDS_TO_END)
        self._thread = None

    def _ended(self, seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

"""Handles the loss of one process of a run: how the others notice, and which of them reports it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator
from datetime import timedelta
from types import FrameType

_FROM_THE_GROUP = ("DistBackendError", "DistNetworkError", "DistStoreError")
_PATIENCE = timedelta(seconds=5)


STOPS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process, beside Ctrl-C: from a launcher, a scheduler, or a terminal that closes."""


class Terminated(BaseException):
    """Raised for one of `STOPS`. A launcher sends such a signal to the remaining processes when one has ended."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def is_loss(error: BaseException) -> bool:
    """Returns whether an error of the process group means that another process is gone. gloo has no class for it."""
    named = any(kind.__name__ in _FROM_THE_GROUP for kind in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """Makes `STOPS` raise `Terminated`, once, in this process alone; children forked in between die of the signal. An
    ignored signal, such as SIGHUP under ``nohup``, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:
            os.kill(os.getpid(), number)
        raise Terminated(number)

    with handled(end):
        yield


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Generator[None]:
    """Installs a handler for those `STOPS` that are not ignored, and restores the old handlers at the end."""
    before = {number: signal.getsignal(number) for number in STOPS}
    heard = [number for number in STOPS if before[number] != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def speaks() -> bool:
    """Returns whether this process is the first of the run to call this, by a count in the launcher's store. If the
    store died with its process, every remaining process reports."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from torch.distributed import DistNetworkError, TCPStore

    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=_PATIENCE)
        return store.add("alignopsd_trl/said", 1) == 1
    except DistNetworkError:
        return True

"""One process of a run ends: how the others notice, and which of them says so."""

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
"""What asks a process to end, beside Ctrl-C: a launcher or a scheduler, and a terminal that is closed."""


class Terminated(BaseException):
    """One of `STOPS`, such as a launcher sends to the processes that are left when one has ended."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def is_loss(error: BaseException) -> bool:
    """Whether an error of the process group says that another process is gone. gloo has no class for it."""
    named = any(kind.__name__ in _FROM_THE_GROUP for kind in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """`STOPS` raise `Terminated`, once, in this process alone: children that were forked in between die of it. What is
    ignored, as ``nohup`` ignores SIGHUP, stays ignored."""
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
    """`STOPS` that are not ignored have this handler for a while."""
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
    """Whether this process is the first of the run to ask, which the launcher's store knows. Where the store went with
    its process, every process that is left speaks."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from torch.distributed import DistNetworkError, TCPStore

    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=_PATIENCE)
        return store.add("alignopsd_trl/said", 1) == 1
    except DistNetworkError:
        return True

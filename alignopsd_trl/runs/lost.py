"""One process of a run ends: how the others notice, and which of them says so."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from datetime import timedelta
from types import FrameType

_FROM_THE_GROUP = ("DistBackendError", "DistNetworkError", "DistStoreError")
_PATIENCE = timedelta(seconds=5)


class Terminated(BaseException):
    """SIGTERM, as a launcher sends it to the processes that are left when one has ended."""


def is_loss(error: BaseException) -> bool:
    """Whether an error of the process group says that another process is gone. gloo has no class for it."""
    named = any(kind.__name__ in _FROM_THE_GROUP for kind in type(error).__mro__)
    return named or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """SIGTERM raises `Terminated`, once, in this process alone: children that were forked in between die of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != owner:
            os.kill(os.getpid(), signal.SIGTERM)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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

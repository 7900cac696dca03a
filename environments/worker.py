"""The worker process of a `ProcessBatch`: environments, and a loop that answers one item after another.

A thread ends the process, and removes the pool's temporary folder, as soon as the parent is gone, even while the loop
is busy. A living parent kills its workers itself and handles Ctrl-C for them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from alignopsd_trl.environments.base import EnvironmentsDown, Failure, TextEnvironment
from alignopsd_trl.environments.declared import resetting
from alignopsd_trl.environments.generators import RandomStream
from alignopsd_trl.environments.validation import guarded

READY = "ready"
RESET, STEP, FINISH, RESTORE = "reset", "step", "finish", "restore"


def main() -> None:
    """Runs a worker. Arguments are the connection's descriptor, the parent's process id and the pool's folder."""
    descriptor, parent, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watcher = threading.Thread(target=_watch, args=(parent, folder), daemon=True)
    watcher.start()
    try:
        serve(Connection(descriptor))
    except (EOFError, OSError):
        pass  # the connection is closed: the parent is gone, or about to kill us
    watcher.join()


def serve(connection: Connection) -> None:
    """Receives a factory, reports that it is ready (or why not), then answers batches item by item, in order."""
    pickled = connection.recv_bytes()
    try:
        factory: Callable[[], TextEnvironment] = cloudpickle.loads(pickled)
        getattr(factory, "prepare", lambda: None)()
    except Exception as error:
        connection.send(Failure.of(error).message)
        return
    connection.send(READY)
    slots = Slots(factory)
    while True:
        for slot, kind, payload in connection.recv():
            answer = slots.answer(slot, kind, payload)
            try:
                pickled = ForkingPickler.dumps(answer)
            except Exception as error:  # of any kind, from the user's own objects
                told = f"what {kind}() returned can't leave the worker process: {Failure.of(error).message}"
                pickled = ForkingPickler.dumps(Failure("error", told))
            connection.send_bytes(pickled)


class Slots:
    """The environments of a worker, which take turns. Each has the global random generators to itself, unless its class
    declares ``concurrent = True``."""

    def __init__(self, factory: Callable[[], TextEnvironment]):
        self._factory = factory
        self._environments: dict[int, TextEnvironment] = {}
        self._streams: dict[int, RandomStream] = {}

    def answer(self, slot: int, kind: str, payload: Any) -> Any:
        """Returns the result of an item; errors of an environment end its own episode."""
        try:
            if slot not in self._environments:
                self._environments[slot] = self._factory()
            if kind != RESTORE:
                return self._lent(slot, kind, payload)
            task, actions = payload
            self._lent(slot, RESET, task)
            for action in actions:
                self._lent(slot, STEP, action)
            return None
        except EnvironmentsDown as error:
            return EnvironmentsDown(str(error))
        except BaseException as error:  # no signal raises here
            gone = self._environments.pop(slot, None)
            found = Failure.of(error)
            if gone is not None:
                guarded(gone.close)
            return found

    def _lent(self, slot: int, kind: str, payload: Any) -> Any:
        if getattr(self._environments[slot], "concurrent", False) is True:
            return self._called(slot, kind, payload)
        stream = self._streams.setdefault(slot, RandomStream())
        if kind == RESET:
            stream.begin(payload.get("seed"))
        return stream.around(partial(self._called, slot, kind, payload))

    def _called(self, slot: int, kind: str, payload: Any) -> Any:
        environment = self._environments[slot]
        if kind == STEP:
            return environment.step(payload)
        if kind == FINISH:
            return environment.finish()
        return resetting(environment, payload)()


def _watch(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)

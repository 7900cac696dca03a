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
from multiprocessing.connection import Connection
from typing import Any

from alignopsd_trl.environments.base import Failure, TextEnvironment

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
    try:
        factory: Callable[[], TextEnvironment] = connection.recv()
        getattr(factory, "prepare", lambda: None)()
    except EOFError:
        raise
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(READY)
    environments: dict[int, TextEnvironment] = {}
    while True:
        for slot, kind, payload in connection.recv():
            connection.send(_answer(environments, factory, slot, kind, payload))


def _answer(
    environments: dict[int, TextEnvironment], factory: Callable[[], TextEnvironment], slot: int, kind: str, payload: Any
) -> Any:
    try:
        if slot not in environments:
            environments[slot] = factory()
        environment = environments[slot]
        if kind == STEP:
            return environment.step(payload)
        if kind == RESET:
            return environment.reset(**payload)
        if kind == FINISH:
            return environment.finish()
        task, actions = payload
        environment.reset(**task)
        for action in actions:
            environment.step(action)
        return None
    except Exception as error:  # any error of an environment ends its own episode only
        environments.pop(slot).close() if slot in environments else None
        return Failure.of(error)


def _watch(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)

"""Many environments on a few processes, for environments that burn CPU or are not thread-safe.

Slots are dealt to ``min(cores, size)`` worker processes. A call sends each worker its whole part in one message; the
worker answers item by item, so the item that a worker died or hung on is known. The worker is replaced, and the
episodes of its slots are replayed from their actions, which gives the same state, since an environment is a function of
its task and its actions. An item that a worker hung on is lost (a `Failure`). One that it died on is tried once more: a
worker that was killed from outside loses nothing, an action that kills ends its own episode. The same replay lets a
worker be replaced at any time, before leaks of foreign code add up.

Workers are started as plain subprocesses, neither forked (CUDA, threads) nor through `multiprocessing` (which imports
the main script again).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import joblib

from alignopsd_trl.environments.base import (
    Ending,
    EnvironmentsDown,
    Failure,
    Opening,
    Projection,
    Step,
    TextEnvironment,
)
from alignopsd_trl.environments.declared import Declared
from alignopsd_trl.environments.generators import kept
from alignopsd_trl.environments.validation import guarded
from alignopsd_trl.environments.worker import FINISH, READY, RESET, RESTORE, STEP

Item = tuple[int, str, Any]  # slot, kind, payload
LAST = 2.0  # seconds in which a worker ends whose connection is closed
START_LIMIT = 300.0  # seconds until a new worker must report; imports are slow on a busy machine
RECYCLE_AFTER = 2000
_ENTRY = "from alignopsd_trl.environments.worker import main; main()"


class ProcessBatch(Declared):
    """An `EnvironmentBatch` over worker processes. In each of them environments take turns, as in a `ThreadedBatch`.

    Args:
        factory: makes an environment; is pickled, by value if no module has it (a notebook's class, a lambda). May have
            ``prepare()``, called once in each new worker.
        size: number of slots.
        time_limit: seconds for one `reset` or `step` of one slot.
        workers: processes, by default this process's share of the cores (or one a slot, if those are fewer).
        recycle_after: resets after which a worker is replaced by a fresh one.
        face: an environment that the factory made already, which parses actions here.

    Raises:
        TypeError: if the factory can't be pickled.
        RuntimeError: if a worker can't start; the message is the worker's.
    """

    def __init__(
        self,
        factory: Callable[[], TextEnvironment],
        size: int,
        time_limit: float = 60.0,
        workers: int | None = None,
        recycle_after: int = RECYCLE_AFTER,
        face: TextEnvironment | None = None,
    ):
        if size < 1 or time_limit <= 0 or (workers is not None and workers < 1) or recycle_after < 1:
            raise ValueError(
                f"size={size}, workers={workers} and recycle_after={recycle_after} must be at least 1, "
                f"time_limit={time_limit:g} above 0"
            )
        if face is None:
            with kept():
                face = factory()
        self._face = face
        self._describe(face)
        self._factory, self._time_limit, self._recycle_after = _pickled(factory, self.name), time_limit, recycle_after
        self.slots = size
        self._tasks: list[Mapping[str, Any] | None] = [None] * size
        self._actions: list[list[str]] = [[] for _ in range(size)]
        self._suspects: set[int] = set()  # slots at whose item of the present call a worker has died
        self._folder = tempfile.mkdtemp(prefix="environments-")
        self._workers: list[_Worker | None] = [None] * min(workers or _cores(), size)
        self._locks = [threading.Lock() for _ in self._workers]
        self._finalizer = weakref.finalize(self, _stop, self._workers, self._folder, os.getpid())
        try:
            self._ensure(range(len(self._workers)))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.process.pid for worker in self._workers if worker is not None]

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        with self._alone(slots):
            for slot in slots:
                self._tasks[slot] = None
            for home in {self._home(slot) for slot in slots}:
                if (worker := self._workers[home]) is not None and worker.resets >= self._recycle_after:
                    self._discard(home)
            return self._run([(slot, RESET, dict(task)) for slot, task in zip(slots, tasks, strict=True)])

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        with self._alone(slots):
            return self._run([(slot, STEP, action) for slot, action in zip(slots, actions, strict=True)])

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        if type(self._face).finish is TextEnvironment.finish:
            return [None] * len(slots)
        with self._alone(slots):
            return self._run([(slot, FINISH, None) for slot in slots])

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._face.project(response) if admissible is None else self._face.project(response, admissible)

    def close(self) -> None:
        """Ends all workers and removes what they left."""
        self._finalizer()
        guarded(self._face.close)

    def worker(self, slot: int) -> int:
        """Returns the number of the worker process of a slot."""
        return self._home(slot)

    def _home(self, slot: int) -> int:
        return slot % len(self._workers)

    @contextlib.contextmanager
    def _alone(self, slots: Sequence[int]) -> Generator[None]:
        """Keeps other threads from the workers of some slots while the context is open."""
        with contextlib.ExitStack() as held:
            for home in sorted({self._home(slot) for slot in slots}):
                held.enter_context(self._locks[home])
            yield

    def _live(self, home: int) -> _Worker:
        worker = self._workers[home]
        assert worker is not None, "callers `_ensure` it"
        return worker

    def _run(self, items: Sequence[Item]) -> list[Any]:
        results: dict[int, Any] = {}
        queues: dict[int, deque[Item]] = {}
        homes = {self._home(slot) for slot, _, _ in items}
        self._suspects.difference_update([slot for slot in tuple(self._suspects) if self._home(slot) in homes])
        for item in items:
            slot, kind, _ = item
            if kind in (STEP, FINISH) and self._tasks[slot] is None:
                results[slot] = Failure("error", "there is no episode in this slot: reset it first")
            else:
                queues.setdefault(self._home(slot), deque()).append(item)
        try:
            self._ensure(queues)
            for home, queue in queues.items():
                self._send(home, queue, restore=self._live(home).fresh)
            self._collect(queues, results)
        except BaseException:  # such as Ctrl-C: outstanding answers would be taken for those of later calls
            for home in queues:
                self._discard(home)
            raise
        return [results[slot] for slot, _, _ in items]

    def _collect(self, queues: dict[int, deque[Item]], results: dict[int, Any]) -> None:
        open_homes = {home for home, queue in queues.items() if queue}
        while open_homes:
            workers = {home: self._live(home) for home in open_homes}
            patience = max(0.0, min(worker.deadline for worker in workers.values()) - time.monotonic())
            ready = wait([worker.connection for worker in workers.values()], timeout=patience)
            for home, worker in workers.items():
                if worker.connection in ready:
                    self._receive(home, queues[home], results)
                elif time.monotonic() >= worker.deadline:
                    message = f"no answer within {self._time_limit:g} s"
                    self._lose(home, queues[home], results, Failure("timeout", message))
            open_homes = {home for home in open_homes if queues[home]}

    def _receive(self, home: int, queue: deque[Item], results: dict[int, Any]) -> None:
        worker = self._live(home)
        try:
            answer = worker.connection.recv_bytes()
        except (EOFError, OSError):
            self._lose(home, queue, results, Failure("error", f"the worker process ended ({worker.reason()})"))
            return
        try:
            outcome = pickle.loads(answer)
        except Exception as error:  # of the class of a result, which this process may not have
            outcome = Failure(
                "error", f"what the worker process returned can't be read here: {Failure.of(error).message}"
            )
        if isinstance(outcome, EnvironmentsDown):
            raise outcome
        worker.deadline = time.monotonic() + self._time_limit
        worker.resets += queue[0][1] in (RESET, RESTORE)
        self._settle(queue, results, outcome)

    def _settle(self, queue: deque[Item], results: dict[int, Any], outcome: Any) -> None:
        """Stores the outcome of the first item of a queue."""
        slot, kind, payload = queue.popleft()
        if isinstance(outcome, Failure):
            self._tasks[slot] = None
            if kind == RESTORE:  # the slot's own item can't be played any more
                waiting = [item for item in queue if item[0] == slot]
                for item in waiting:
                    queue.remove(item)
        elif kind == RESET:
            self._tasks[slot], self._actions[slot] = payload, []
        elif kind == STEP:
            self._actions[slot].append(payload)
        if kind != RESTORE or isinstance(outcome, Failure):
            results[slot] = outcome

    def _lose(self, home: int, queue: deque[Item], results: dict[int, Any], failure: Failure) -> None:
        """Replaces a worker that died or hung on the first item of its queue. The new one gets the other items."""
        slot = queue[0][0]
        if failure.kind == "timeout" or slot in self._suspects:
            self._settle(queue, results, failure)
        else:
            self._suspects.add(slot)
        self._discard(home)
        remaining = [item for item in queue if item[1] != RESTORE]
        queue.clear()
        queue.extend(remaining)
        if queue:
            self._ensure([home])
            self._send(home, queue, restore=True)

    def _send(self, home: int, queue: deque[Item], restore: bool) -> None:
        worker = self._live(home)
        worker.fresh = False
        if restore:
            resetting = {slot for slot, kind, _ in queue if kind == RESET}
            for slot, task in enumerate(self._tasks):
                if self._home(slot) == home and task is not None and slot not in resetting:
                    queue.appendleft((slot, RESTORE, (task, list(self._actions[slot]))))
        worker.deadline = time.monotonic() + self._time_limit
        try:
            worker.connection.send(list(queue))
        except OSError:
            pass  # it died or hangs: the collection of answers notices that

    def _ensure(self, homes: Collection[int]) -> None:
        workers = {home: self._workers[home] for home in homes}
        missing = [home for home, worker in workers.items() if worker is None or worker.process.poll() is not None]
        for home in missing:
            self._discard(home)
            self._workers[home] = _Worker(self._folder, self._time_limit)
        for home in missing:
            self._live(home).start(self._factory)

    def _discard(self, home: int) -> None:
        worker, self._workers[home] = self._workers[home], None
        if worker is not None:
            worker.kill()


class _Worker:
    def __init__(self, folder: str, time_limit: float):
        ours, theirs = socket.socketpair()
        self.set_limits(ours, time_limit)
        paths = [os.path.abspath(path) for path in sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _ENTRY, str(theirs.fileno()), str(os.getpid()), folder],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        self.deadline = 0.0
        self.resets = 0
        self.fresh = True

    @staticmethod
    def set_limits(end: socket.socket, seconds: float) -> None:
        """A frozen worker must not block us in the middle of a message either."""
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6) + 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def start(self, factory: bytes) -> None:
        try:
            self.connection.send_bytes(factory)
            answer = self.connection.recv() if self.connection.poll(START_LIMIT) else f"silent for {START_LIMIT:g} s"
        except (EOFError, OSError):
            answer = f"ended before it was ready ({self.reason()}); its own words are on stderr"
        if answer != READY:
            raise RuntimeError(f"an environment worker can't start: {answer}")

    def reason(self) -> str:
        """Says how a worker ended that answers no more. One that lives on, as it may after an error, is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LAST)
        self.process.kill()
        return _reason(self.process.wait())

    def kill(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def _stop(workers: list[_Worker | None], folder: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner must not end the owner's workers
    for index, worker in enumerate(workers):
        workers[index] = None
        if worker is not None:
            worker.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _pickled(factory: Callable[[], TextEnvironment], name: str) -> bytes:
    try:
        return cloudpickle.dumps(factory)
    except Exception as error:  # of any kind, from the user's own objects
        raise TypeError(
            f"environment {name}: its factory can't be sent to a worker process ({Failure.of(error).message}); make "
            "what can't be pickled inside reset(), or set concurrent = False"
        ) from error


def _cores() -> int:
    """Returns this process's share of the cores: launchers start ``LOCAL_WORLD_SIZE`` processes on a machine."""
    return max(1, joblib.cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"

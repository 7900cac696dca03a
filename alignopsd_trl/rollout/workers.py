"""Steps environments on worker threads as actions come in: a slow environment does not hold up the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from alignopsd_trl.environments.base import Failure, Step
from alignopsd_trl.environments.batch import ValidatedBatch

Call = tuple[int, str, "Future[Step | Failure]"]  # slot, action, where the result goes


class Workers:
    """A [`~driver.CallQueue`] with one thread for each worker of a batch (`EnvironmentBatch`). Actions that are
    submitted while a worker is busy make up its next call.

    The threads are daemons: a call that hangs does not keep a program from ending.
    """

    def __init__(self, environments: ValidatedBatch, worker: Callable[[int], int]):
        self._environments, self._worker_of = environments, worker
        self._queues: dict[int, queue.SimpleQueue[Call | None]] = {}

    def submit(self, episode: int, action: str) -> Future[Step | Failure]:
        future: Future[Step | Failure] = Future()
        self._queue(self._worker_of(episode)).put((episode, action, future))
        return future

    def flush(self) -> bool:
        return False

    def close(self) -> None:
        for calls in self._queues.values():
            calls.put(None)

    def _queue(self, worker: int) -> queue.SimpleQueue[Call | None]:
        if worker not in self._queues:
            self._queues[worker] = queue.SimpleQueue()
            threading.Thread(target=self._run, args=[self._queues[worker]], daemon=True, name="worker").start()
        return self._queues[worker]

    def _run(self, waiting: queue.SimpleQueue[Call | None]) -> None:
        while (first := waiting.get()) is not None:
            taken: list[Call | None] = [first]
            while not waiting.empty():
                taken.append(waiting.get())
            calls = [one for one in taken if one is not None]
            try:
                steps = self._environments.step([one[0] for one in calls], [one[1] for one in calls])
            except BaseException as error:  # raised again where the result is awaited
                for _, _, future in calls:
                    future.set_exception(error)
            else:
                for (_, _, future), step in zip(calls, steps, strict=True):
                    future.set_result(step)
            if None in taken:
                return

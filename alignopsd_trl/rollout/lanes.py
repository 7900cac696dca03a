"""Steps environments on threads, as actions come in: one that takes its time holds up nobody else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from alignopsd_trl.environments.base import Failure, Step
from alignopsd_trl.environments.batch import ValidatedBatch

Asked = tuple[int, str, "Future[Step | Failure]"]  # slot, action, where the answer goes


class Lanes:
    """A [`~driver.Desk`] that steps each lane of a batch (`EnvironmentBatch`) on a thread of its own. What is asked
    while a lane is busy is its next call.

    The threads are daemons: a call that hangs does not keep a program from ending.
    """

    def __init__(self, environments: ValidatedBatch, lane: Callable[[int], int]):
        self._environments, self._of = environments, lane
        self._lanes: dict[int, queue.SimpleQueue[Asked | None]] = {}

    def ask(self, episode: int, question: str) -> Future[Step | Failure]:
        future: Future[Step | Failure] = Future()
        self._lane(self._of(episode)).put((episode, question, future))
        return future

    def flush(self) -> bool:
        return False

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.put(None)

    def _lane(self, name: int) -> queue.SimpleQueue[Asked | None]:
        if name not in self._lanes:
            self._lanes[name] = queue.SimpleQueue()
            threading.Thread(target=self._work, args=[self._lanes[name]], daemon=True, name="lane").start()
        return self._lanes[name]

    def _work(self, lane: queue.SimpleQueue[Asked | None]) -> None:
        while (first := lane.get()) is not None:
            asked: list[Asked | None] = [first]
            while not lane.empty():
                asked.append(lane.get())
            calls = [one for one in asked if one is not None]
            try:
                found = self._environments.step([one[0] for one in calls], [one[1] for one in calls])
            except BaseException as error:  # whoever awaits it is to meet it
                for _, _, future in calls:
                    future.set_exception(error)
            else:
                for (_, _, future), step in zip(calls, found, strict=True):
                    future.set_result(step)
            if None in asked:
                return

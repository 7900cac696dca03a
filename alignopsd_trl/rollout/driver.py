"""Runs coroutines that await futures, in the caller's thread, and the queues that make and fulfil these.

There is no event loop, since a notebook runs one in the same thread. The caller's autocast, `no_grad` and Ctrl-C apply.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from types import coroutine
from typing import Any, Generic, TypeVar

from alignopsd_trl.environments.base import Failure, Step
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.sampler import PATIENCE, BatchSampler, Request, Response, Sampler

SLICE = 60.0  # seconds between two collectives of processes that play on their own
Argument = TypeVar("Argument")
Result = TypeVar("Result")


@coroutine
def result_of(future: Future[Result]) -> Generator[Future[Result], None, Result]:
    """Awaits a future's result."""
    if not future.done():
        yield future
    return future.result()


class BatchedCalls(Generic[Argument, Result]):
    """Calls that episodes submit and await; one call is made for all that wait.

    Args:
        function: takes the numbers of the episodes, rising, and their arguments; returns a result for each.
    """

    def __init__(self, function: Callable[[list[int], list[Argument]], Sequence[Result]]):
        self._function = function
        self._waiting: list[tuple[int, Argument, Future[Result]]] = []

    def submit(self, episode: int, argument: Argument) -> Future[Result]:
        future: Future[Result] = Future()
        self._waiting.append((episode, argument, future))
        return future

    def flush(self) -> bool:
        """Makes the calls that belong to this thread and says whether there were any."""
        calls, self._waiting = sorted(self._waiting, key=lambda one: one[0]), []
        if calls:
            results = self._function([one[0] for one in calls], [one[1] for one in calls])
            for (_, _, future), value in zip(calls, results, strict=True):
                future.set_result(value)
        return bool(calls)

    def close(self) -> None:
        self._waiting = []


class Lockstep:
    """A [`BatchSampler`] as a [`Sampler`]: one batch for all episodes of all processes.

    Args:
        agree: all-reduces the maximum of a number.
        filler: makes a prompt for processes with fewer live episodes, since sampling may run collectives.
    """

    waits_for_all = True

    def __init__(self, sampler: BatchSampler, agree: Callable[[int], int], filler: Callable[[], list[int]]):
        self._sampler, self._agree, self._filler = sampler, agree, filler
        self._asked: list[tuple[Request, Future[Response]]] = []

    @property
    def waiting(self) -> int:
        return len(self._asked)

    def submit(self, request: Request) -> Future[Response]:
        future: Future[Response] = Future()
        self._asked.append((request, future))
        return future

    def advance(self) -> bool:
        asked = sorted(self._asked, key=lambda one: one[0].episode)
        self._asked = []
        width = self._agree(len(asked))
        if not width:
            return False
        missing = width - len(asked)
        prompts = [list(request.prompt_ids) for request, _ in asked] + ([self._filler()] * missing if missing else [])
        ids, log_probs = self._sampler.respond(prompts)
        for row, (_, future) in enumerate(asked):
            future.set_result(Response(ids[row], None if log_probs is None else log_probs[row]))
        return True

    def drop(self) -> None:
        self._asked = []


class Driver:
    """Runs coroutines, such as episodes, side by side, and resumes each as soon as the result that it awaits is there.

    Args:
        works: the coroutines. They await only futures of these samplers and queues, through `result_of`.
        samplers, queues: sample responses and call environments; the driver advances the ones and flushes the others.

    Attributes:
        live: the number of coroutines that have not ended.
    """

    def __init__(
        self,
        works: Sequence[Coroutine[Any, Any, None]],
        samplers: Sequence[Sampler],
        queues: Sequence[BatchedCalls | Workers],
    ):
        self._works, self._queues = works, queues
        self._own = [one for one in samplers if not one.waits_for_all]
        self._common = [one for one in samplers if one.waits_for_all]
        self._ready: queue.SimpleQueue[Coroutine[Any, Any, None]] = queue.SimpleQueue()
        for work in works:
            self._ready.put(work)
        self.live = len(works)

    def run(self, together: Callable[[Callable[[], None]], None], agree: Callable[[int], int]) -> None:
        """Runs the coroutines of all processes to their ends. A collective: ``together`` raises on all what one call
        raises, ``agree`` all-reduces the maximum of a number."""
        try:
            while True:
                together(self._run_slice)
                if not agree(self.live):
                    break
                for sampler in self._common:
                    sampler.advance()
        finally:
            self._close()

    def _run_slice(self) -> None:
        """Runs the coroutines for at most `SLICE` seconds. Ends earlier where all have ended, or all that are left wait
        for a sampler that `waits_for_all`."""
        end = time.monotonic() + SLICE
        while self.live and time.monotonic() < end:
            if self._go_on() or any([calls.flush() for calls in self._queues]):
                continue
            if any([sampler.advance() for sampler in self._own]):
                continue
            if self.live == sum(sampler.waiting for sampler in self._common):
                break
            self._go_on(PATIENCE)

    def _close(self) -> None:
        """Drops all requests and closes all queues and coroutines."""
        for sampler in (*self._own, *self._common):
            sampler.drop()
        for calls in self._queues:
            calls.close()
        for work in self._works:
            work.close()

    def _go_on(self, patience: float = 0.0) -> bool:
        """Waits ``patience`` seconds at most, resumes the coroutines that can go on, and says whether there were
        any."""
        went = False
        while True:
            try:
                work = self._ready.get(timeout=patience) if patience else self._ready.get_nowait()
            except queue.Empty:
                return went
            went, patience = True, 0.0
            try:
                awaited = work.send(None)
            except StopIteration:
                self.live -= 1
            else:
                awaited.add_done_callback(lambda _, work=work: self._ready.put(work))


def steps_of(environments: ValidatedBatch, samplers: Sequence[Sampler]) -> BatchedCalls | Workers:
    """Makes the queue of steps, with a thread for each worker where no sampler `waits_for_all`."""
    in_step = not samplers or any(one.waits_for_all for one in samplers)
    worker = None if in_step else environments.worker
    return BatchedCalls(environments.step) if worker is None else Workers(environments, worker)


StepCall = tuple[int, Any, "Future[Step | Failure]"]  # slot, action, where the result goes


class Workers:
    """Like `BatchedCalls`, with one thread for each worker of a batch (`EnvironmentBatch`). Actions that are submitted
    while a worker is busy make up its next call.

    The threads are daemons: a call that hangs does not keep a program from ending.
    """

    def __init__(self, environments: ValidatedBatch, worker: Callable[[int], int]):
        self._environments, self._worker_of = environments, worker
        self._queues: dict[int, queue.SimpleQueue[StepCall | None]] = {}

    def submit(self, episode: int, action: Any) -> Future[Step | Failure]:
        future: Future[Step | Failure] = Future()
        worker = self._worker_of(episode)
        if worker not in self._queues:
            self._queues[worker] = queue.SimpleQueue()
            threading.Thread(target=self._run, args=[self._queues[worker]], daemon=True, name="worker").start()
        self._queues[worker].put((episode, action, future))
        return future

    def flush(self) -> bool:
        return False

    def close(self) -> None:
        for calls in self._queues.values():
            calls.put(None)

    def _run(self, waiting: queue.SimpleQueue[StepCall | None]) -> None:
        while (first := waiting.get()) is not None:
            taken: list[StepCall | None] = [first]
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

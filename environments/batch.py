"""Many episodes side by side: one call at a time, on threads or in worker processes, as their class declares.

Callers use `open_batch`. It takes the batch that a factory brings, or makes the one that fits, and wraps it in the
checks of `alignopsd_trl.environments.validation`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import partial
from operator import methodcaller
from typing import Any

from alignopsd_trl.environments.base import (
    Ending,
    EnvironmentsDown,
    Failure,
    Opening,
    Projection,
    Step,
    TextEnvironment,
)
from alignopsd_trl.environments.declared import (
    PROCESSES,
    SHARED,
    Declared,
    check_environment,
    concurrency,
    declared_by,
    made_by,
    most_alive,
    name_of,
    resetting,
)
from alignopsd_trl.environments.generators import RandomStream, kept
from alignopsd_trl.environments.processes import ProcessBatch
from alignopsd_trl.environments.validation import ValidatedBatch, copied, guarded, limited

__all__ = [
    "Declared",
    "SerialBatch",
    "ThreadedBatch",
    "ValidatedBatch",
    "check_environment",
    "copied",
    "declared_by",
    "guarded",
    "limited",
    "open_batch",
]

MOST_STUCK = 64  # with so many hanging calls a batch makes no new environments
MOST_HANGING = 4  # calls that may hang, one after another, before those that wait for their turn are given up
SECONDS_TO_END = 1.0  # that closing waits for threads whose call hangs
_CLOSED = Failure("error", "the environments are closed")
_LOOK = 0.2  # seconds between two checks for overdue calls


def open_batch(
    factory: Callable[[], TextEnvironment],
    size: int,
    time_limit: float = 60.0,
    *,
    here: bool = False,
    turns: bool = False,
) -> ValidatedBatch:
    """Opens the batch that a factory brings (``factory.batch(size, time_limit)``), else one environment per slot, which
    take turns, or play on threads or in worker processes if they declare that (`TextEnvironment.concurrent`). All that
    the environments return is checked (`alignopsd_trl.environments.validation`).

    Args:
        factory (`Callable[[], TextEnvironment]`):
            Without arguments.
        size (`int`):
            Number of slots.
        time_limit (`float`, *optional*, defaults to 60.0):
            Seconds for one `reset`, `step`, `finish` or `project`.
        here (`bool`, *optional*, defaults to `False`):
            Whether environments take turns in place of worker processes, for callers that read the environments.
        turns (`bool`, *optional*, defaults to `False`):
            Whether they take turns whatever they declare.

    Raises:
        TypeError: if the environment has no prompt, or its ``reset`` does not take ``seed``.
        ValueError: if ``max_turns``, ``history_length`` or ``concurrent`` is out of range.
    """
    own = getattr(factory, "batch", None)
    batch = own(size, time_limit) if own is not None else _fitting(factory, size, time_limit, here, turns)
    return ValidatedBatch(batch, getattr(batch, "name", name_of(factory)), time_limit, size)


def _fitting(factory: Callable[[], TextEnvironment], size: int, time_limit: float, here: bool, turns: bool) -> Any:
    if isinstance(factory, type):
        check_environment(factory)
    with kept():
        first = made_by(factory)
    size = min(size, most_alive(first) or size)
    if concurrency(first) != PROCESSES or here or turns:
        return ThreadedBatch(factory, size, time_limit, first=first, turns=turns)
    check_environment(type(first))
    return ProcessBatch(factory, size, time_limit, face=first)


class SerialBatch(Declared):
    """Environments one after another in the caller's thread, for cheap ones that can't hang. Each episode has the
    global random generators to itself, unless the class declares ``concurrent = True``."""

    def __init__(self, environments: Sequence[TextEnvironment]):
        self._environments = list(environments)
        self._describe(self._environments[0])
        self._streams = None if self.concurrent else [RandomStream() for _ in self._environments]

    def environment(self, slot: int) -> TextEnvironment:
        return self._environments[slot]

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        pairs = list(zip(slots, tasks, strict=True))
        if self._streams is not None:
            for slot, task in pairs:
                self._streams[slot].begin(task.get("seed"))
        return self._each(slots, [resetting(self._environments[slot], task) for slot, task in pairs])

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        pairs = zip(slots, actions, strict=True)
        return self._each(slots, [partial(self._environments[slot].step, action) for slot, action in pairs])

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        return self._each(slots, [self._environments[slot].finish for slot in slots])

    def _each(self, slots: Sequence[int], calls: Sequence[Callable[[], Any]]) -> list[Any]:
        if self._streams is None:
            return [guarded(call) for call in calls]
        with kept():
            pairs = zip(slots, calls, strict=True)
            return [self._streams[slot].around(partial(guarded, call)) for slot, call in pairs]

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._environments[0].project(response, admissible)

    def close(self) -> None:
        for environment in self._environments:
            guarded(environment.close)


class ThreadedBatch(Declared):
    """Runs one `TextEnvironment` a slot on daemon threads, with a time limit per call.

    By default environments take turns: one call at a time on one thread, each episode with the global random generators
    to itself (`alignopsd_trl.environments.generators`). With ``concurrent = True`` there is a thread a slot, for code
    that waits; threads do not compute in parallel, which worker processes do (``concurrent = "processes"``).

    A call that exceeds the limit is abandoned together with its thread and its environment, and then runs beside the
    others. The slot gets a new environment at its next reset; the thread closes the old one and ends if the call ever
    returns. Threads can't be killed, so slots get no new environment while `MOST_STUCK` calls hang; and where
    environments take turns, `MOST_HANGING` calls that hang end the episodes that wait behind them.

    Args:
        factory, size, time_limit: as in `open_batch`.
        threads: at most, with ``concurrent = True``.
        first: an environment that the factory made already.
        turns: whether environments take turns whatever they declare.
    """

    def __init__(
        self,
        factory: Callable[[], TextEnvironment],
        size: int,
        time_limit: float,
        threads: int = 64,
        first: TextEnvironment | None = None,
        turns: bool = False,
    ):
        self._factory, self._time_limit, self.slots = factory, time_limit, size
        if isinstance(factory, type):
            check_environment(factory)
        with kept():
            made = [made_by(factory) if first is None or place else first for place in range(size)]
        self._environments: list[TextEnvironment | Failure] = [*made]
        first = made[0]
        check_environment(type(first))
        if len(set(map(id, made))) < size:
            raise TypeError(f"environment {name_of(first)}: its factory returned {SHARED}")
        self._describe(first)
        self._streams = None if self.concurrent is True and not turns else [RandomStream() for _ in made]
        self._project = first.project
        self._has_endings = type(first).finish is not TextEnvironment.finish
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stuck = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        for _ in range(1 if self._streams else min(threads, size)):
            self._add_thread()

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        return self._run(slots, [self._start(slot, task) for slot, task in zip(slots, tasks, strict=True)])

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        calls = [
            partial(self._call, slot, methodcaller("step", action)) for slot, action in zip(slots, actions, strict=True)
        ]
        return self._run(slots, calls)

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        if not self._has_endings:
            return [None] * len(slots)
        return self._run(slots, [partial(self._call, slot, methodcaller("finish")) for slot in slots])

    def worker(self, slot: int) -> int:
        """Returns the slot where every slot may be stepped in parallel, else 0."""
        return 0 if self._streams else slot

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._project(response, admissible)

    def environment(self, slot: int) -> TextEnvironment | None:
        """Returns the environment of a slot; `None` after it has failed."""
        environment = self._environments[slot]
        return None if isinstance(environment, Failure) else environment

    def close(self) -> None:
        """Closes all environments, each within the time limit of a call, and waits `SECONDS_TO_END` for its threads: a
        daemon thread that wakes while the interpreter shuts down can crash it."""
        self._retire(dict.fromkeys(range(len(self._environments)), _CLOSED))
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        end = time.monotonic() + SECONDS_TO_END
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _call(self, slot: int, call: Callable[[Any], Any]) -> Any:
        """Calls the environment of a slot; a slot without one returns the failure that it was lost by."""
        environment = self._environments[slot]
        return environment if isinstance(environment, Failure) else call(environment)

    def _start(self, slot: int, task: Mapping[str, Any]) -> Callable[[], Any]:
        """Returns the call that starts an episode, in a new environment if the slot has lost its own."""
        if isinstance(self._environments[slot], Failure):
            self._environments[slot] = self._new()
        if self._streams:
            self._streams[slot].begin(task.get("seed"))
        return partial(self._call, slot, lambda environment: resetting(environment, task)())

    def _new(self) -> TextEnvironment | Failure:
        if self._stuck >= MOST_STUCK:
            message = f"{self._stuck} calls of earlier episodes hang; no new environment is made until one returns"
            return Failure("timeout", message)
        with kept():
            return guarded(self._factory)

    def _run(self, slots: Sequence[int], calls: Sequence[Callable[[], Any]]) -> list[Any]:
        pairs = zip(slots, calls, strict=True)
        outcomes = self._outcomes([_Job(call, self.environment(slot), self._stream(slot)) for slot, call in pairs])
        for outcome in outcomes:
            if isinstance(outcome, EnvironmentsDown):
                raise outcome
        lost = {slot: outcome for slot, outcome in zip(slots, outcomes, strict=True) if isinstance(outcome, Failure)}
        for slot, failure in lost.items():
            if failure.kind == "timeout":
                self._environments[slot] = failure  # its thread closes what was there
        self._retire(lost)
        return outcomes

    def _retire(self, lost: Mapping[int, Failure]) -> None:
        """Closes the environments of some slots and stores their failures in the slots."""
        gone = [(slot, left) for slot in lost if not isinstance(left := self._environments[slot], Failure)]
        for slot, failure in lost.items():
            self._environments[slot] = failure
        self._outcomes([_Job(environment.close, None, self._stream(slot)) for slot, environment in gone])

    def _stream(self, slot: int) -> RandomStream | None:
        return self._streams[slot] if self._streams else None

    def _outcomes(self, jobs: Sequence[_Job]) -> list[Any]:
        with kept() if self._streams and jobs else nullcontext():
            try:
                return self._awaited(jobs)
            except BaseException:  # such as Ctrl-C: what has not begun is not to begin
                for job in jobs:
                    job.outcome.cancel()
                raise

    def _awaited(self, jobs: Sequence[_Job]) -> list[Any]:
        with self._lock:  # a caller that waited for its turn while another closed the batch finds no thread
            if self._closed:
                return [_CLOSED] * len(jobs)
            for job in jobs:
                self._jobs.put(job)
        hanging, waiting = 0, {job.outcome for job in jobs}
        while waiting := wait(waiting, timeout=min(self._time_limit, _LOOK)).not_done:
            hanging += sum(job.overdue(self._time_limit) and self._abandon(job) for job in jobs)
            if self._streams and hanging >= MOST_HANGING:
                for job in jobs:
                    job.outcome.cancel()
        message = f"not called: {hanging} calls before it gave no answer within {self._time_limit:g} s"
        return [Failure("error", message) if job.outcome.cancelled() else job.outcome.result() for job in jobs]

    def _abandon(self, job: _Job) -> bool:
        with self._lock:
            if job.outcome.done():
                return False
            job.outcome.set_result(Failure("timeout", f"no answer within {self._time_limit:g} s"))
            self._stuck += 1
            self._add_thread()
            if self._closed:
                self._jobs.put(None)
            return True

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True, name="environment")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.outcome.set_running_or_notify_cancel():
                continue
            job.started = time.monotonic()
            if job.stream is not None:
                job.stream.install()
            outcome = _outcome(job.call)
            with self._lock:
                abandoned = job.outcome.done()
                if abandoned:
                    self._stuck -= 1
                else:
                    if job.stream is not None:
                        job.stream.keep()
                    job.outcome.set_result(outcome)
            if abandoned:
                if job.environment is not None:
                    guarded(job.environment.close)
                return


class _Job:
    def __init__(self, call: Callable[[], Any], environment: TextEnvironment | None, stream: RandomStream | None):
        self.call, self.environment, self.stream = call, environment, stream
        self.started: float | None = None
        self.outcome: Future[Any] = Future()

    def overdue(self, limit: float) -> bool:
        return self.started is not None and time.monotonic() - self.started > limit


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return guarded(call)
    except EnvironmentsDown as error:
        return error

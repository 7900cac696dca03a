"""Many episodes side by side: on threads with a time limit, or one after another.

Callers use `open_batch`. It takes the batch that a factory brings, or makes a `ThreadedBatch`, and wraps it in the
checks of `alignopsd_trl.environments.validation`.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
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
from alignopsd_trl.environments.validation import ValidatedBatch, guarded

MOST_STUCK = 64  # with so many hanging calls a batch makes no new environments
SECONDS_TO_END = 1.0  # that closing waits for threads whose call hangs
SHARED = "the same object for several episodes, which would mix; let it make a new one at each call"
_LOOK = 0.2  # seconds between two checks for overdue calls


def open_batch(factory: Callable[[], TextEnvironment], size: int, time_limit: float = 60.0) -> ValidatedBatch:
    """Opens the batch that a factory brings (``factory.batch(size, time_limit)``), else one thread-isolated environment
    per slot. All that the environments return is checked (`alignopsd_trl.environments.validation`).

    Args:
        factory (`Callable[[], TextEnvironment]`):
            Without arguments.
        size (`int`):
            Number of slots.
        time_limit (`float`, *optional*, defaults to 60.0):
            Seconds for one `reset`, `step` or `finish`.

    Raises:
        TypeError: if the environment has no prompt, or its ``reset`` does not take ``seed``.
        ValueError: if ``max_turns`` or ``history_length`` is out of range.
    """
    own = getattr(factory, "batch", None)
    batch = own(size, time_limit) if own is not None else ThreadedBatch(factory, size, time_limit)
    return ValidatedBatch(batch, getattr(batch, "name", getattr(factory, "__name__", type(factory).__name__)))


class _OfEqual:
    """Reads once the attributes that all environments of a batch share."""

    def _describe(self, first: TextEnvironment) -> None:
        self.name = _name(first)
        self.prompt, self.history_length, self.max_turns = first.prompt, first.history_length, first.max_turns
        self.openings_may_differ = getattr(first, "openings_may_differ", False)
        self.takes_dynamics_seed = takes_dynamics_seed(first)
        self.thinks_freely = getattr(first, "thinks_freely", False)


class SerialBatch(_OfEqual):
    """Environments one after another in the caller's thread, for cheap ones that can't hang."""

    def __init__(self, environments: Sequence[TextEnvironment]):
        self._environments = list(environments)
        self._describe(self._environments[0])

    def environment(self, slot: int) -> TextEnvironment:
        return self._environments[slot]

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        pairs = zip(slots, tasks, strict=True)
        return [guarded(partial(self._environments[slot].reset, **task)) for slot, task in pairs]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        pairs = zip(slots, actions, strict=True)
        return [guarded(partial(self._environments[slot].step, action)) for slot, action in pairs]

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        return [guarded(self._environments[slot].finish) for slot in slots]

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._environments[0].project(response, admissible)

    def close(self) -> None:
        for environment in self._environments:
            guarded(environment.close)


class ThreadedBatch(_OfEqual):
    """Runs one `TextEnvironment` a slot on daemon threads, with a time limit per call.

    A call that exceeds the limit is abandoned together with its thread and its environment. The slot gets a new
    environment at its next reset; the thread closes the old one and ends if the call ever returns. Threads can't be
    killed, so slots get no new environment while `MOST_STUCK` calls hang. Threads isolate environments but do not
    compute in parallel: one that burns CPU should bring its own batch (a factory with a ``batch(size, time_limit)``
    method).
    """

    def __init__(self, factory: Callable[[], TextEnvironment], size: int, time_limit: float, threads: int = 64):
        self._factory, self._time_limit = factory, time_limit
        if isinstance(factory, type):
            check_environment(factory)
        made = [_made(factory) for _ in range(size)]
        self._environments: list[TextEnvironment | Failure] = [*made]
        first = made[0]
        check_environment(type(first))
        _check_own(made)
        self._describe(first)
        self._project = first.project
        self._has_endings = type(first).finish is not TextEnvironment.finish
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stuck = 0
        self._threads: list[threading.Thread] = []
        for _ in range(min(threads, size)):
            self._add_thread()

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        return self._run(slots, [self._start(slot, task) for slot, task in zip(slots, tasks, strict=True)])

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        return self._run(slots, [partial(self._call, s, "step", a) for s, a in zip(slots, actions, strict=True)])

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        if not self._has_endings:
            return [None] * len(slots)
        return self._run(slots, [partial(self._call, slot, "finish") for slot in slots])

    def worker(self, slot: int) -> int:
        """Returns the slot: every slot may be stepped in parallel."""
        return slot

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return self._project(response, admissible)

    def environment(self, slot: int) -> TextEnvironment | None:
        """Returns the environment of a slot; `None` after it has failed."""
        found = self._environments[slot]
        return None if isinstance(found, Failure) else found

    def close(self) -> None:
        """Closes all environments, each within the time limit of a call, and waits `SECONDS_TO_END` for its threads: a
        daemon thread that wakes while the interpreter shuts down can crash it."""
        self._retire(dict.fromkeys(range(len(self._environments)), Failure("error", "the environments are closed")))
        threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        end = time.monotonic() + SECONDS_TO_END
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _call(self, slot: int, method: str, *given: Any, **columns: Any) -> Any:
        """Calls the environment of a slot; a slot without one returns the failure that it was lost by."""
        found = self._environments[slot]
        return found if isinstance(found, Failure) else getattr(found, method)(*given, **columns)

    def _start(self, slot: int, task: Mapping[str, Any]) -> Callable[[], Any]:
        """Returns the call that starts an episode, in a new environment if the slot has lost its own."""
        if isinstance(self._environments[slot], Failure):
            self._environments[slot] = self._new()
        return partial(self._call, slot, "reset", **task)

    def _new(self) -> TextEnvironment | Failure:
        if self._stuck >= MOST_STUCK:
            message = f"{self._stuck} calls of earlier episodes hang; no new environment is made until one returns"
            return Failure("timeout", message)
        return guarded(self._factory)

    def _run(self, slots: Sequence[int], calls: Sequence[Callable[[], Any]]) -> list[Any]:
        outcomes = self._outcomes([_Job(call, self.environment(s)) for s, call in zip(slots, calls, strict=True)])
        for outcome in outcomes:
            if isinstance(outcome, EnvironmentsDown):
                raise outcome
        lost = {slot: one for slot, one in zip(slots, outcomes, strict=True) if isinstance(one, Failure)}
        for slot, failure in lost.items():
            if failure.kind == "timeout":
                self._environments[slot] = failure  # its thread closes what was there
        self._retire(lost)
        return outcomes

    def _retire(self, lost: Mapping[int, Failure]) -> None:
        """Closes the environments of some slots and stores their failures in the slots."""
        gone = [one for slot in lost if not isinstance(one := self._environments[slot], Failure)]
        for slot, failure in lost.items():
            self._environments[slot] = failure
        self._outcomes([_Job(environment.close, None) for environment in gone])

    def _outcomes(self, jobs: Sequence[_Job]) -> list[Any]:
        for job in jobs:
            self._jobs.put(job)
        waiting = {job.outcome for job in jobs}
        while waiting := wait(waiting, timeout=min(self._time_limit, _LOOK)).not_done:
            for job in jobs:
                if job.overdue(self._time_limit):
                    self._abandon(job)
        return [job.outcome.result() for job in jobs]

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            if job.outcome.done():
                return
            job.outcome.set_result(Failure("timeout", f"no answer within {self._time_limit:g} s"))
            self._stuck += 1
            self._add_thread()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, daemon=True, name="environment")
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = time.monotonic()
            outcome = _outcome(job.call)
            with self._lock:
                abandoned = job.outcome.done()
                if abandoned:
                    self._stuck -= 1
                else:
                    job.outcome.set_result(outcome)
            if abandoned:
                if job.environment is not None:
                    guarded(job.environment.close)
                return


class _Job:
    def __init__(self, call: Callable[[], Any], environment: TextEnvironment | None):
        self.call, self.environment = call, environment
        self.started: float | None = None
        self.outcome: Future[Any] = Future()

    def overdue(self, limit: float) -> bool:
        return self.started is not None and time.monotonic() - self.started > limit


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return guarded(call)
    except EnvironmentsDown as error:
        return error


def _made(factory: Callable[[], TextEnvironment]) -> TextEnvironment:
    """Makes an environment before there are episodes. Errors of its factory reach the caller, but end no process.

    Raises:
        RuntimeError: in place of a `SystemExit`.
    """
    try:
        return factory()
    except SystemExit as error:
        raise RuntimeError(f"making an environment ended in {Failure.of(error).message}; mend its factory") from error


def _check_own(made: Sequence[Any]) -> None:
    """Refuses one object for several episodes.

    Raises:
        TypeError: names the environment.
    """
    if len(set(map(id, made))) < len(made):
        raise TypeError(f"environment {_name(made[0])}: its factory returned {SHARED}")


def _name(environment: TextEnvironment) -> str:
    return getattr(environment, "__name__", type(environment).__name__)


def takes_dynamics_seed(environment: Any) -> bool:
    """Whether an environment's `reset` takes ``dynamics_seed``, or its attribute of this name says so."""
    own = getattr(environment, "takes_dynamics_seed", None)
    return reset_names(type(environment), "dynamics_seed") if own is None else own


def reset_names(kind: type, parameter: str) -> bool:
    """Whether the `reset` of a class names a parameter, or takes ``**columns`` and overrides one that names it."""
    for one in kind.__mro__:
        if "reset" in vars(one):
            found = inspect.signature(vars(one)["reset"]).parameters
            if parameter in found:
                return True
            if not any(each.kind is each.VAR_KEYWORD for each in found.values()):
                return False
    return False


def check_environment(kind: type[Any]) -> None:
    """Refuses a class that can't play an episode.

    Raises:
        TypeError: names the class and the method.
    """
    missing = [name for name in ("reset", "step", "project") if not callable(getattr(kind, name, None))]
    missing += sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"environment {kind.__name__} has no {missing[0]}(); write it, as docs/your_own_task.md shows")
    parameters = inspect.signature(kind.reset).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD or parameter.name == "seed" for parameter in parameters):
        raise TypeError(
            f"{kind.__name__}.reset must take every dataset column and 'seed' by keyword; end its signature with "
            "**columns"
        )

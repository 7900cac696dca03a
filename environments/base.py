"""What every text environment is, and what a rollout needs to know of it.

Data flow of one episode::

    reset(**task) -> Opening -> prompt.render(view, skill) -> policy -> project(response) -> step(action) -> Step -> ...

An environment is a plain Python object: it never sees token ids, models or processes. The prompt side (how a turn is
shown to a policy, how a response becomes an action) belongs to the environment; the caller keeps the history and
decides how much of it fits. ``won`` (the environment verified success), ``score`` (the environment's own number) and
``done`` (the episode ended) are three different things and are never derived from each other here.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datasets import Dataset

    from environments.panel import TaskPanel


@dataclass(frozen=True)
class Projection:
    """A response turned into an action. ``valid`` is the environment's verdict on the *format*; the action is
    executed either way."""

    action: str
    valid: bool


@dataclass(frozen=True)
class Opening:
    """What an episode starts with. ``task_text`` is the request alone (the retrieval query of the skill bank)."""

    observation: str
    task_text: str
    admissible: tuple[str, ...] = ()
    category: str = ""
    task_key: str | None = None
    data_source: str | None = None


@dataclass(frozen=True)
class Step:
    """The environment's answer to one action. ``info["valid"]``, if it is there and false, takes back what `Projection`
    said of the action's format (an action that was not on offer, where that counts as invalid). Numbers in the ``info``
    of an episode's last step are logged (``last_step/<name>``); all of it is saved with the trajectories as JSON."""

    observation: str
    reward: float = 0.0
    done: bool = False
    won: bool = False
    score: float = 0.0
    admissible: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """An environment that raised or outlasted its time limit. It costs its own episode only."""

    kind: str  # "error" or "timeout"
    message: str


@dataclass(frozen=True)
class Record:
    """One finished turn as the history shows it: ``number`` counts from 1 over the whole episode, ``observation`` is
    what the action was chosen on, ``result`` what the environment answered."""

    number: int
    observation: str
    action: str
    result: str


@dataclass(frozen=True)
class View:
    """All that a prompt may be rendered from. ``history`` holds the records that are shown (a suffix of the episode);
    ``step_count`` counts all actions taken so far, shown or not."""

    task_text: str
    observation: str
    admissible: tuple[str, ...]
    history: tuple[Record, ...]
    step_count: int


class Prompt(Protocol):
    """Renders one turn as one user message. An empty ``skill`` leaves no trace, not even an empty line."""

    name: str

    def render(self, view: View, skill: str = "") -> str: ...


class EnvironmentsDown(RuntimeError):
    """What all environments share (a retrieval server, say) has failed for good: no episode can go on. A run saves its
    state and ends with this error, instead of training on empty observations."""


class TextEnvironment(ABC):
    """One episode at a time of a text game.

    Follows TRL's environment convention where it applies: a factory without arguments, ``reset(**row)`` with every
    dataset column (and an integer ``seed``), ``get_reward()`` once per finished rollout. In place of tools it has
    ``step(action)``.

    Attributes:
        prompt (`Prompt`): how a turn is shown to the policy.
        history_length (`int`): how many past turns the prompt shows at most.
        max_turns (`int`): turns after which the caller ends the episode.
        task_text, category, admissible, task_key, data_source: of the current episode, valid after `reset`.
    """

    prompt: Prompt
    history_length: int = 2
    max_turns: int = 50

    task_text: str = ""
    category: str = ""
    admissible: tuple[str, ...] = ()
    task_key: str | None = None
    data_source: str | None = None

    @abstractmethod
    def reset(self, **task: Any) -> str:
        """Starts the episode of a dataset row and returns the first observation as the prompt shows it."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Executes any string. Never raises on what a policy can write."""

    @abstractmethod
    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        """Turns any response into an action and a verdict on its format. Pure; never raises. ``admissible`` are the
        actions that were on offer, for rules that ask for one of them."""

    @abstractmethod
    def get_reward(self) -> float:
        """The terminal reward of the episode so far."""

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Frees what the environment holds."""

    def open(self, task: Mapping[str, Any]) -> Opening:
        """`reset`, with everything that the caller needs to know of the new episode in one record."""
        observation = self.reset(**task)
        return Opening(
            observation, self.task_text, tuple(self.admissible), self.category, self.task_key, self.data_source
        )


class EnvironmentBatch(Protocol):
    """Many episodes side by side, addressed by slot. One bad episode yields a `Failure` and nothing else.

    A batch may have a method ``metrics() -> dict[str, float]`` with counters since it was made; the trainer logs what
    each round adds, as ``environment/<name>``.
    """

    prompt: Prompt
    history_length: int
    max_turns: int

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]: ...

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]: ...

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection: ...

    def close(self) -> None: ...


class ThreadedBatch:
    """Runs one `TextEnvironment` a slot on daemon threads, with a time limit per call.

    A call that outlasts the limit is abandoned together with its thread and its environment; the slot gets a new
    environment at its next reset. Threads give isolation, not parallel arithmetic: an environment that burns CPU
    should bring its own batch (a factory with a ``batch(size, time_limit)`` method).
    """

    def __init__(self, factory: Callable[[], TextEnvironment], size: int, time_limit: float, threads: int = 16):
        self._factory = factory
        self._time_limit = time_limit
        self._environments: list[TextEnvironment | None] = [factory() for _ in range(size)]
        first = self._environments[0]
        self.prompt, self.history_length, self.max_turns = first.prompt, first.history_length, first.max_turns
        self.project = first.project
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        for _ in range(min(threads, size)):
            self._add_thread()

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        for slot in slots:
            if self._environments[slot] is None:
                self._environments[slot] = self._factory()
        return self._run(slots, [(self._environments[s].open, t) for s, t in zip(slots, tasks, strict=True)])

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        return self._run(slots, [(self._environments[s].step, a) for s, a in zip(slots, actions, strict=True)])

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)
        for environment in self._environments:
            if environment is not None:
                environment.close()

    def _run(self, slots: Sequence[int], calls: Sequence[tuple[Callable[[Any], Any], Any]]) -> list[Any]:
        jobs = [_Job(call, argument) for call, argument in calls]
        for job in jobs:
            self._jobs.put(job)
        with self._changed:
            for slot, job in zip(slots, jobs, strict=True):
                while job.outcome is None:
                    if job.overdue(self._time_limit):
                        job.outcome = Failure("timeout", f"no answer within {self._time_limit:g} s")
                        self._environments[slot] = None
                        self._add_thread()
                    else:
                        self._changed.wait(timeout=min(self._time_limit, 0.2))
        for slot, job in zip(slots, jobs, strict=True):
            if isinstance(job.outcome, EnvironmentsDown):
                raise job.outcome
            if isinstance(job.outcome, Failure):
                self._environments[slot] = None
        return [job.outcome for job in jobs]

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, daemon=True, name="environment").start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = time.monotonic()
            try:
                outcome = job.call(job.argument)
            except EnvironmentsDown as error:
                outcome = error
            except Exception as error:  # an environment is foreign code: whatever it raises ends its own episode only
                outcome = Failure("error", f"{type(error).__name__}: {error}")
            with self._changed:
                abandoned = job.outcome is not None
                if not abandoned:
                    job.outcome = outcome
                self._changed.notify_all()
            if abandoned:
                return


class _Job:
    def __init__(self, call: Callable[[Any], Any], argument: Any):
        self.call, self.argument = call, argument
        self.started: float | None = None
        self.outcome: Any = None

    def overdue(self, limit: float) -> bool:
        return self.started is not None and time.monotonic() - self.started > limit


def open_batch(factory: Callable[[], TextEnvironment], size: int, time_limit: float = 60.0) -> EnvironmentBatch:
    """The batch that a factory brings (``factory.batch(size, time_limit)``), else one thread-isolated environment a
    slot. ``time_limit`` is in seconds per `reset` or `step`."""
    own = getattr(factory, "batch", None)
    return own(size, time_limit) if own is not None else ThreadedBatch(factory, size, time_limit)


@dataclass(frozen=True)
class Suite:
    """An environment with its tasks: what a recipe or an evaluation asks for by name.

    Attributes:
        name: of the environment.
        skill_bank: name of the shipped skill bank that fits it.
        factory: without arguments, makes one `TextEnvironment`.
        tasks: split name -> `datasets.Dataset` with at least the columns ``task_id`` (str) and ``category`` (str).
        panel: panel name -> `TaskPanel`, the fixed and checksummed list that evaluations play.
        categories: in the order in which tables print them.
        description: what a result must record to be comparable (data checksum, options, versions).
    """

    name: str
    factory: Callable[[], TextEnvironment]
    tasks: Callable[[str], Dataset]
    panel: Callable[[str], TaskPanel]
    categories: tuple[str, ...]
    description: Mapping[str, Any]
    skill_bank: str = ""


def load(name: str, **options: Any) -> Suite:
    """The suite of a shipped environment (``webshop``, ``alfworld``, ``searchqa``) or of a module of the user's that
    has a ``suite(**options)`` function (``package.module``).

    Raises:
        ValueError: if there is no such environment.
    """
    module = name if "." in name else f"environments.{name}"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(
            f"environment {name!r} is unknown; use 'webshop', 'alfworld', 'searchqa' or the dotted name of a module "
            "with a function suite(**options)"
        ) from error
    return found.suite(**options)

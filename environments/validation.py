"""Checks all values that an environment returns, before they are used.

A value that breaks the contract ends its own episode, with a message that names the field, the value and the remedy.
The caller adds the environment's name and the task.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from alignopsd_trl.environments.base import (
    Ending,
    EnvironmentBatch,
    EnvironmentsDown,
    Failure,
    Opening,
    Projection,
    Step,
    text_of_error,
)
from alignopsd_trl.environments.generators import kept

PREPARING = 600.0  # seconds in which a row is prepared
MOST_WAITING = 64  # calls that may hang before no more are made
LARGEST = 3.4e38  # of a number, as float32 holds it
DEEPEST = 32  # levels of dicts and lists in an info
MOST_BITS = 14_000  # of an int in an info: Python writes no longer ones
LONGEST_TEXT = 1 << 18  # characters of an observation, a task text, an action, or all actions on offer together
Value = TypeVar("Value")


class Breach(ValueError):
    """Raised for a value that an environment must not return."""


class ValidatedBatch:
    """A batch whose results are checked: an `Opening`, `Step`, `Ending` or `Projection` with fields of the declared
    types, or a `Failure`.

    Raises:
        TypeError: if the environment has no prompt.
        ValueError: if ``max_turns`` or ``history_length`` is out of range.
    """

    def __init__(self, batch: EnvironmentBatch, name: str, time_limit: float = 60.0, slots: int = 1):
        self._batch, self.name, self._time_limit = batch, name, time_limit
        self.slots: int = getattr(batch, "slots", slots)
        self.prompt: Any = getattr(batch, "prompt", None)
        if not callable(getattr(self.prompt, "render", None)):
            raise TypeError(f"environment {name}: prompt must have a method render(view, skill), got {self.prompt!r}")
        self.history_length, self.max_turns = batch.history_length, batch.max_turns
        self.openings_may_differ: bool = getattr(batch, "openings_may_differ", False)
        self.takes_dynamics_seed: bool = getattr(batch, "takes_dynamics_seed", False)
        self.thinks_freely: bool = getattr(batch, "thinks_freely", False)
        self.concurrent: bool | str = getattr(batch, "concurrent", False)
        self._projects_itself: bool = getattr(batch, "projects_itself", True)
        self._prepare: Callable[..., None] | None = getattr(batch, "prepare_row", None)
        self._steps: Counter[int] = Counter()  # of the present episodes, by slot
        for field, least in (("history_length", 0), ("max_turns", 1)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"environment {name}: {field} must be an int of at least {least}, got {value!r}")

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        self._steps.update({slot: -self._steps[slot] for slot in slots})
        if self._prepare is not None:
            with kept():  # no other episode of this process plays meanwhile
                for task in tasks:
                    limited(partial(self._prepare, **task), PREPARING)  # `reset` meets its error again
        own = [{name: copied(value) for name, value in task.items()} for task in tasks]  # it may write into them
        return [_admitted(opening_of, value) for value in self._batch.reset(slots, own)]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        self._steps.update(slots)
        return [_admitted(step_of, value) for value in self._batch.step(slots, actions)]

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        endings = self._batch.finish(slots) if slots else []
        checks = [partial(ending_of, turns=self._steps[slot]) for slot in slots]
        return [_admitted(check, value) for check, value in zip(checks, endings, strict=True)]

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection | Failure:
        call = partial(self._batch.project, response, admissible)
        return _admitted(projection_of, self.limited(call) if self._projects_itself else guarded(call))

    def limited(self, call: Callable[[], Any]) -> Any:
        """Makes a call of foreign code, of the task but of no episode, with the time limit of the environments. Returns
        its result or a `Failure`."""
        return limited(call, self._time_limit)

    @property
    def sibling_advice(self) -> str:
        """Says what to change where siblings of a task differ, by what the environment declares and how it is
        played."""
        if not getattr(self._batch, "takes_seed", False):
            return (
                "Give reset() a parameter 'seed' and draw everything from it (siblings get the same), or put what it "
                "draws into columns of the dataset"
            )
        others = "a generator without this seed (random.Random(), numpy.random.default_rng()), the clock, a server"
        shared = "what environments share (class attributes, globals, files)"
        if self.concurrent is True:
            shared = f"{shared}, which calls change at once where concurrent = True"
        return f"reset() takes 'seed' already, so something else decides too: {others}, or {shared}; keep all in self"

    @property
    def worker(self) -> Callable[[int], int] | None:
        """The batch's ``worker``, see `EnvironmentBatch`; `None`: all steps are made in one thread."""
        return getattr(self._batch, "worker", None)

    def environment(self, slot: int) -> Any:
        """Returns the environment of a slot; `None` if the batch does not expose it or the slot has lost it."""
        find = getattr(self._batch, "environment", None)
        return None if find is None else find(slot)

    def metrics(self) -> dict[str, float]:
        """Returns the batch's counters, if it has any."""
        return dict(getattr(self._batch, "metrics", dict)())

    def close(self) -> None:
        self._batch.close()


def guarded(call: Callable[[], Any]) -> Any:
    """Makes a call and returns its result, or a `Failure` for any error of foreign code. Ctrl-C and SIGTERM, which
    raise in the main thread alone, are passed on there.

    Raises:
        EnvironmentsDown: passed on.
    """
    try:
        return call()
    except EnvironmentsDown:
        raise
    except BaseException as error:
        of_a_signal = not isinstance(error, Exception | SystemExit)
        if of_a_signal and threading.current_thread() is threading.main_thread():
            raise
        return Failure.of(error)


_waiting: list[threading.Thread] = []  # of calls that did not return in time


def limited(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Makes a call on a thread of its own; as `guarded`, and a `Failure` if there is no answer in time. The thread is
    left alone then."""
    _waiting[:] = [thread for thread in _waiting if thread.is_alive()]
    if len(_waiting) >= MOST_WAITING:
        return Failure("timeout", f"{len(_waiting)} earlier calls hang; no new one is made until one returns")
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(guarded(call))
        except EnvironmentsDown as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True, name="environment-call")
    thread.start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        _waiting.append(thread)
        return Failure("timeout", f"no answer within {seconds:g} s")


def copied(value: Any) -> Any:
    """Copies a value of a dataset's row, down through lists and dicts."""
    if isinstance(value, dict):
        return {name: copied(part) for name, part in value.items()}
    if isinstance(value, list):
        return [copied(part) for part in value]
    return value


def _admitted(check: Callable[[Any], Value], value: Any) -> Value | Failure:
    if isinstance(value, Failure):
        return (
            value if isinstance(value.message, str) else Failure("error", f"Failure.message is {_shown(value.message)}")
        )
    try:
        return check(value)
    except Breach as breach:
        return Failure("error", str(breach))
    except Exception as error:  # of any kind, from the class of a value
        return Failure.of(error)


def opening_of(value: Any) -> Opening:
    """Checks a reset result. Raises `Breach`, as the other functions here do."""
    _instance("reset()", value, Opening, "observation=..., task_text=...")
    _text("Opening.observation", value.observation)
    _text("Opening.task_text", value.task_text)
    _text("Opening.category", value.category)
    for name in ("task_key", "data_source"):
        if getattr(value, name) is not None:
            _text(f"Opening.{name}", getattr(value, name))
    return _with(value, admissible=_actions("Opening.admissible", value.admissible))


def step_of(value: Any) -> Step:
    _instance("step()", value, Step, "observation=..., reward=..., done=...")
    _text("Step.observation", value.observation)
    return _with(
        value,
        reward=_number("Step.reward", value.reward),
        score=_number("Step.score", value.score),
        done=_flag("Step.done", value.done),
        won=None if value.won is None else _flag("Step.won", value.won),
        valid=_flag("Step.valid", value.valid),
        lost=_flag("Step.lost", value.lost),
        milestone=_milestone(value.milestone),
        admissible=_actions("Step.admissible", value.admissible),
        metrics=_numbers("Step.metrics", value.metrics),
        info=_info("Step.info", value.info),
        opening=None if value.opening is None else opening_of(value.opening),
    )


def ending_of(value: Any, turns: int) -> Ending | None:
    if value is None:
        return None
    _instance("finish()", value, Ending, "reward=...")
    return _with(
        value,
        reward=_number("Ending.reward", value.reward),
        score=None if value.score is None else _number("Ending.score", value.score),
        won=None if value.won is None else _flag("Ending.won", value.won),
        metrics=_numbers("Ending.metrics", value.metrics),
        info=_info("Ending.info", value.info),
        turn_rewards=_turn_rewards(value.turn_rewards, turns),
    )


def _turn_rewards(value: Any, turns: int) -> Mapping[int, float]:
    names: Mapping[Any, Any] = value if isinstance(value, Mapping) else _mapping("Ending.turn_rewards", value)
    wrong = [number for number in names if not isinstance(number, int) or number not in range(turns)]
    if wrong:
        raise Breach(f"Ending.turn_rewards names turn {_shown(wrong[0])}, and the episode has {turns}, from 0 on")
    return {number: _number(f"Ending.turn_rewards[{number}]", reward) for number, reward in names.items()}


def projection_of(value: Any) -> Projection:
    _instance("project()", value, Projection, "action=..., valid=...")
    _text("Projection.action", value.action)
    return _with(value, valid=_flag("Projection.valid", value.valid))


def _with(value: Any, **fields: Any) -> Any:
    """Returns the value, or a copy if a field had to be converted to its declared type."""
    changed = {name: field for name, field in fields.items() if getattr(value, name) is not field}
    return replace(value, **changed) if changed else value


def _instance(call: str, value: Any, kind: type, fields: str) -> None:
    if not isinstance(value, kind):
        raise Breach(f"{call} returned {_shown(value)}; return environments.{kind.__name__}({fields})")


def _text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise Breach(f"{field} is {_shown(value)}, not a str")
    if len(value) > LONGEST_TEXT:
        raise Breach(f"{field} has {len(value):,} characters, at most {LONGEST_TEXT:,} are taken; shorten it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            surrogate = value[error.start].encode("unicode_escape").decode()
            raise Breach(
                f"{field} has the lone surrogate {surrogate} at character {error.start}, which no tokenizer takes; "
                "decode bytes with errors='replace'"
            ) from None


def _milestone(value: Any) -> str | None:
    if value is not None:
        _text("Step.milestone", value)
    return value or None


def _actions(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Breach(f"{field} is {_shown(value)}, not a tuple of str")
    for action in value:
        if not isinstance(action, str):
            raise Breach(f"{field} has {_shown(action)} in it, not a str")
    _text(field, "".join(value))
    return value if type(value) is tuple else tuple(value)


def _number(field: str, value: Any) -> float:
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    if not isinstance(value, Real):
        raise Breach(f"{field} is {_shown(value)}, not a number; use float(...)")
    try:
        number = float(value)
    except Exception as error:  # of any kind: the class may be foreign, or an int too large
        raise Breach(f"{field} is {_shown(value)}, which float(...) refuses: {text_of_error(error)}") from None
    if not math.isfinite(number):
        raise Breach(f"{field} is {number}, which is not finite")
    if abs(number) > LARGEST:
        raise Breach(f"{field} is {number:g}, beyond what float32 holds; divide it")
    return number


def _flag(field: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    if type(value).__name__ not in ("bool", "bool_"):  # numpy's own
        raise Breach(f"{field} is {_shown(value)}, not a bool")
    return bool(value)


def _info(field: str, value: Any) -> Mapping[str, Any]:
    _plain(field, _mapping(field, value), 0)
    return value


def _mapping(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Breach(f"{field} is {_shown(value)}, not a dict")
    for name in value:
        if not isinstance(name, str):
            raise Breach(f"{field} has {_shown(name)} as a key, not a str")
    return value


def _plain(field: str, value: Any, depth: int) -> None:
    """Refuses what can't be saved as JSON. Values of other classes are saved as their text; a long text of the info
    itself is not saved."""
    if isinstance(value, list | tuple | Mapping | (str if depth > 1 else list)) and len(value) > LONGEST_TEXT:
        raise Breach(f"{field} holds a {type(value).__name__} of {len(value):,}, at most {LONGEST_TEXT:,} are taken")
    if isinstance(value, str) or value is None:
        return
    if depth > DEEPEST:
        raise Breach(f"{field} has more than {DEEPEST} levels, or holds itself; flatten it")
    if isinstance(value, Mapping):
        for name, part in value.items():
            if not isinstance(name, _KEYS):
                raise Breach(f"{field} holds a dict with {_shown(name)} as a key; use a str")
            _plain(field, part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _plain(field, part, depth + 1)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise Breach(f"{field} holds {_shown(value)}, which can't be written as JSON")
    elif not isinstance(value, Real):
        _writable(field, value)


def _writable(field: str, value: Any) -> None:
    """Refuses an object of another class whose text, which is saved in its place, can't be made or is too long."""
    try:
        length = len(str(value))
    except Exception as error:  # of any kind, from the class of the value
        raise Breach(f"{field} holds {_shown(value)}, whose text raises {type(error).__name__}; leave it out") from None
    if length > LONGEST_TEXT:
        raise Breach(f"{field} holds an object of {type(value).__name__} of {length:,} characters; leave it out")


_KEYS = (str, int, float, type(None))


def _numbers(field: str, value: Any) -> Mapping[Any, float]:
    numbers = {name: _number(f"{field}[{name!r}]", number) for name, number in _mapping(field, value).items()}
    return value if all(type(number) in (bool, int, float) for number in value.values()) else numbers


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"the {kind} of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except Exception as error:  # of any kind, from the class of the value
        return f"an object of {kind}, whose repr raises {type(error).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"the {kind} {text if len(text) <= 60 else text[:57] + '...'}"

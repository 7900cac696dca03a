"""Checks all values that an environment returns, before they are used.

A value that breaks the contract ends its own episode, with a message that names the field, the value and the remedy.
The caller adds the environment's name and the task.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
)

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

    def __init__(self, batch: EnvironmentBatch, name: str):
        self._batch, self.name = batch, name
        self.prompt: Any = getattr(batch, "prompt", None)
        if not callable(getattr(self.prompt, "render", None)):
            raise TypeError(f"environment {name}: prompt must have a method render(view, skill), got {self.prompt!r}")
        self.history_length, self.max_turns = batch.history_length, batch.max_turns
        self.openings_may_differ: bool = getattr(batch, "openings_may_differ", False)
        self.takes_dynamics_seed: bool = getattr(batch, "takes_dynamics_seed", False)
        self.thinks_freely: bool = getattr(batch, "thinks_freely", False)
        self._steps: Counter[int] = Counter()  # of the present episodes, by slot
        for field, least in (("history_length", 0), ("max_turns", 1)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"environment {name}: {field} must be an int of at least {least}, got {value!r}")

    def reset(self, slots: Sequence[int], tasks: Sequence[Mapping[str, Any]]) -> list[Opening | Failure]:
        self._steps.update({slot: -self._steps[slot] for slot in slots})
        return [_admitted(opening_of, value) for value in self._batch.reset(slots, tasks)]

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Step | Failure]:
        self._steps.update(slots)
        return [_admitted(step_of, value) for value in self._batch.step(slots, actions)]

    def finish(self, slots: Sequence[int]) -> list[Ending | None | Failure]:
        found = self._batch.finish(slots) if slots else []
        checks = [partial(ending_of, turns=self._steps[slot]) for slot in slots]
        return [_admitted(check, value) for check, value in zip(checks, found, strict=True)]

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection | Failure:
        return _admitted(projection_of, guarded(partial(self._batch.project, response, admissible)))

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


def _admitted(check: Callable[[Any], Value], value: Any) -> Value | Failure:
    if isinstance(value, Failure):
        return value
    try:
        return check(value)
    except Breach as breach:
        return _refused(breach)


def _refused(breach: Breach) -> Failure:
    return Failure("error", str(breach))


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
        admissible=_actions("Step.admissible", value.admissible),
        metrics=_numbers("Step.metrics", value.metrics),
        info=_mapping("Step.info", value.info),
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
        info=_mapping("Ending.info", value.info),
        turn_rewards=_turn_rewards(value.turn_rewards, turns),
    )


def _turn_rewards(value: Any, turns: int) -> Mapping[int, float]:
    names = _mapping("Ending.turn_rewards", value)
    wrong = [number for number in names if not isinstance(number, int) or number not in range(turns)]
    if wrong:
        raise Breach(f"Ending.turn_rewards names turn {_shown(wrong[0])}, and the episode has {turns}, from 0 on")
    return _numbers("Ending.turn_rewards", value)


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
            found = value[error.start].encode("unicode_escape").decode()
            raise Breach(
                f"{field} has the lone surrogate {found} at character {error.start}, which no tokenizer takes; decode "
                "bytes with errors='replace'"
            ) from None


def _actions(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Breach(f"{field} is {_shown(value)}, not a tuple of str")
    for action in value:
        if not isinstance(action, str):
            raise Breach(f"{field} has {_shown(action)} in it, not a str")
    _text(field, "".join(value))
    return value if type(value) is tuple else tuple(value)


def _number(field: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise Breach(f"{field} is {_shown(value)}, not a number; use float(...)")
    if not math.isfinite(value):
        raise Breach(f"{field} is {value}, which is not finite")
    return value if type(value) is float else float(value)


def _flag(field: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    if type(value).__name__ not in ("bool", "bool_"):  # numpy's own
        raise Breach(f"{field} is {_shown(value)}, not a bool")
    return bool(value)


def _mapping(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Breach(f"{field} is {_shown(value)}, not a dict")
    return value


def _numbers(field: str, value: Any) -> Mapping[Any, float]:
    numbers = {name: _number(f"{field}[{name!r}]", number) for name, number in _mapping(field, value).items()}
    return value if all(type(number) in (bool, int, float) for number in value.values()) else numbers


def _shown(value: Any) -> str:
    text = repr(value)
    kind = type(value).__name__
    if value is None:
        return "None"
    return f"the {kind} {text if len(text) <= 60 else text[:57] + '...'}"

"""What the class of an environment declares, and the refusal of classes that can't play."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from alignopsd_trl.environments.base import Failure, TextEnvironment
from alignopsd_trl.environments.generators import kept
from alignopsd_trl.environments.validation import guarded

PROCESSES = "processes"
SHARED = "the same object for several episodes, which would mix; let it make a new one at each call"
_PACKAGE = __name__.rpartition(".")[0]


class Declared:
    """Reads once the attributes that all environments of a batch share. Whether `reset` takes a seed is seen in its
    signature, unless an attribute of that name says so."""

    def _describe(self, first: TextEnvironment) -> None:
        self.name = name_of(first)
        self.prompt, self.history_length, self.max_turns = first.prompt, first.history_length, first.max_turns
        self.openings_may_differ = getattr(first, "openings_may_differ", False)
        takes = getattr(first, "takes_seed", None)
        self.takes_seed = names_seed(type(first)) if takes is None else takes
        takes = getattr(first, "takes_dynamics_seed", None)
        self.takes_dynamics_seed = reset_names(type(first), "dynamics_seed") if takes is None else takes
        self.thinks_freely = getattr(first, "thinks_freely", False)
        self.concurrent, self.most_alive = concurrency(first), most_alive(first)
        self.projects_itself = not _is_ours(first.project)
        prepares = getattr(first, "prepare_row", None)
        self.prepare_row = None if prepares is TextEnvironment.prepare_row else prepares


def name_of(environment: Any) -> str:
    """Returns the name of a class's object, or its own, as of a function."""
    return getattr(environment, "__name__", type(environment).__name__)


def concurrency(environment: Any) -> bool | str:
    """Returns `TextEnvironment.concurrent`.

    Raises:
        ValueError: if it is of another value.
    """
    declared = getattr(environment, "concurrent", False)
    if declared not in (False, True, PROCESSES):
        raise ValueError(
            f"environment {name_of(environment)}: concurrent={declared!r} must be False (one call at a time), True "
            f"(calls on threads) or {PROCESSES!r} (calls in worker processes)"
        )
    return declared


def most_alive(environment: Any) -> int | None:
    """Returns `TextEnvironment.most_alive`.

    Raises:
        ValueError: if it is no number of environments.
    """
    most = getattr(environment, "most_alive", None)
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ValueError(
            f"environment {name_of(environment)}: most_alive={most!r} must be the number of environments that exist "
            "at once, at least 1, or None for no limit"
        )
    return most


def _is_ours(method: Callable[..., Any]) -> bool:
    return f"{getattr(method, '__module__', '')}.".startswith(f"{_PACKAGE}.")


def names_seed(kind: type[Any]) -> bool:
    """Whether the `reset` of a class itself names ``seed``."""
    return "seed" in inspect.signature(kind.reset).parameters


def reset_names(kind: type, parameter: str) -> bool:
    """Whether the `reset` of a class names a parameter, or takes ``**columns`` and overrides one that names it."""
    for base in kind.__mro__:
        if "reset" in vars(base):
            parameters = inspect.signature(vars(base)["reset"]).parameters
            if parameter in parameters:
                return True
            if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                return False
    return False


def resetting(environment: Any, task: Mapping[str, Any]) -> Callable[[], Any]:
    """Returns the call that resets an environment to a task.

    Raises:
        ValueError: by the call, for a column that no method can take by its name.
    """
    if "self" in task:
        return partial(_refuse, "the row has a column 'self', which no reset() can take by its name; rename it")
    return partial(environment.reset, **task)


def _refuse(message: str) -> None:
    raise ValueError(message)


def made_by(factory: Callable[[], TextEnvironment]) -> TextEnvironment:
    """Makes an environment before there are episodes. Errors of its factory reach the caller, but end no process.

    Raises:
        RuntimeError: in place of a `SystemExit`.
    """
    try:
        return factory()
    except SystemExit as error:
        raise RuntimeError(f"making an environment ended in {Failure.of(error).message}; mend its factory") from error


def declared_by(factory: Callable[[], Any]) -> Declared:
    """Returns what the environments of a factory declare. It makes one to read that, and closes it again: an open one
    may hold a process.

    Raises:
        ValueError: as `concurrency` and `most_alive`.
        RuntimeError: as `made_by`.
    """
    declared = Declared()
    with kept():
        made = made_by(factory)
        try:
            declared._describe(made)
        finally:
            guarded(made.close)
    return declared


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

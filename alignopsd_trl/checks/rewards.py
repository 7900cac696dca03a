"""Checks the values that reward functions, which are the user's code, return, before they become a gradient.

Each function is called on the episodes that their environment did not fail, and must return one finite number per
episode, or `None` for no reward (TRL's convention), which is counted. Any other value ends the run, on all
processes, with the function, the episode and the value.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from alignopsd_trl.common.progress import cut


class RewardError(ValueError):
    """Raised for a reward that can't be trained on. The message names function, episode and value."""


class RewardCheck:
    """Wraps reward functions; `problem` is the first error since the last `take`."""

    def __init__(self) -> None:
        self._problem: str | None = None
        self._silent: dict[str, int] = {}

    def take(self) -> tuple[str | None, dict[str, int]]:
        """Returns the problem, and how often each function returned `None`, since the last call."""
        taken = self._problem, self._silent
        self._problem, self._silent = None, {}
        return taken

    def wrap(self, function: Any) -> Any:
        """Returns the function with a check of its values; a model or its name, which TRL calls, stays as it is."""
        if isinstance(function, str) or not callable(function) or hasattr(function, "forward"):
            return function
        name = _name(function)
        checks = functools.partial(self._checked, name)
        if inspect.iscoroutinefunction(inspect.unwrap(_innermost(function))) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an instance whose call is a coroutine function)
        ):

            async def wrapped(**given: Any) -> list[float | None]:
                usable, part = _usable(given)
                return checks(given, usable, await function(**part) if usable else [])
        else:

            def wrapped(**given: Any) -> list[float | None]:
                usable, part = _usable(given)
                return checks(given, usable, function(**part) if usable else [])

        wrapped.__name__ = name
        return wrapped

    def _checked(self, name: str, given: Mapping[str, Any], usable: Sequence[int], answer: Any) -> list[float | None]:
        """Returns one number per episode; 0 for one that its environment failed, which is left out of everything."""
        trajectories = given["trajectory"]
        rewards: list[float | None] = [0.0] * len(trajectories)
        values = _listed(answer)
        if values is None or len(values) != len(usable):
            shape = f"{len(values)} values" if values is not None else f"{_shown(answer)} ({type(answer).__name__})"
            self._report(
                f"reward function {name!r} returned {shape} for {len(usable)} episodes; return a list with one "
                "finite number (or None) per episode"
            )
            return rewards
        for place, value in zip(usable, values, strict=True):
            rewards[place] = self._number(name, place, trajectories[place], value)
        return rewards

    def _number(self, name: str, place: int, trajectory: Any, value: Any) -> float | None:
        if value is None:
            self._silent[name] = self._silent.get(name, 0) + 1
            return None
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()
        if isinstance(value, Real) and math.isfinite(value):
            return float(value)
        self._report(
            f"reward function {name!r} returned {_shown(value)} ({type(value).__name__}) for row {place}, task "
            f"{trajectory.task!r}, rollout {trajectory.rollout}; return a finite number, or None where there is none"
        )
        return 0.0

    def _report(self, problem: str) -> None:
        self._problem = self._problem or problem


def _usable(given: Mapping[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Returns the indices of the episodes that did not fail, and the arguments reduced to these."""
    trajectories = given["trajectory"]
    count = len(trajectories)
    places = [place for place, one in enumerate(trajectories) if not one.failed]
    if len(places) == count:
        return places, dict(given)

    def spread(column: str, values: Sequence[Any]) -> None:
        full: list[Any] = [None] * count
        for place, value in zip(places, values, strict=True):
            full[place] = value
        given["log_extra"](column, full)

    part = {
        name: [value[place] for place in places] if isinstance(value, list) and len(value) == count else value
        for name, value in given.items()
    }
    return places, part | ({"log_extra": spread} if "log_extra" in given else {})


def _listed(answer: Any) -> list[Any] | None:
    if hasattr(answer, "tolist") and getattr(answer, "ndim", 0) == 1:
        return answer.tolist()
    return list(answer) if isinstance(answer, Sequence) and not isinstance(answer, str | bytes) else None


def _innermost(function: Callable) -> Callable:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: Callable) -> str:
    inner = _innermost(function)
    return getattr(inner, "__name__", type(inner).__name__)


def _shown(value: Any) -> str:
    return cut(repr(value), 80)

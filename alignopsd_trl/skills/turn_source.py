"""Loads the function that gives a turn its privileged text: a user's, or one of two examples by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from alignopsd_trl.skills.loading import accepts, function_named
from alignopsd_trl.turns import Trajectory, Turn


def next_observation(turn: Turn) -> str | None:
    """Tells the answer to the turn's action; `None` where there was no action or no answer. An environment that has
    better words for this than its observation gives them as ``Step.info["next_observation"]``."""
    answer = turn.info.get("next_observation", turn.observation)
    return f"After the action {turn.action} you will see: {answer}" if turn.action and answer else None


def feedback(turn: Turn) -> str | None:
    """Returns what the environment itself says of the action, ``Step.info["feedback"]``; `None` where it gave none."""
    return turn.info.get("feedback")


SHIPPED = {example.__name__: example for example in (next_observation, feedback)}

NAMES = ("task_text", "row", "turn", "trajectory", "siblings")
"""What a source may ask for, in the order of its positional arguments."""


class PrivilegedError(ValueError):
    """Raised for what is no source, for a source that raised, and for a text that is none."""


class PrivilegedSource:
    """A function that gives the teacher a text for a turn, after its round was played.

    Args:
        function: has parameters of `NAMES` (``siblings`` are the other trajectories of the group), or takes five
            arguments in this order. It returns a text; `None` or "" leaves the turn without a teacher's view.
        name: for messages and records; by default the function's module and name.

    Raises:
        PrivilegedError: if the function takes other arguments.
    """

    def __init__(self, function: Callable[..., str | None], name: str = ""):
        own = getattr(function, "__qualname__", type(function).__name__)
        self.name = name or f"{getattr(function, '__module__', '')}:{own}"
        self._function, self._by_name = function, _by_name(function, self.name)

    def __call__(self, turn: Turn, trajectory: Trajectory, siblings: Sequence[Trajectory]) -> str:
        """Returns the text of a turn, empty for none.

        Raises:
            PrivilegedError: if the function raised or returned no text.
        """
        given: list[Any] = [trajectory.task_text, trajectory.row, turn, trajectory, siblings]
        named = {name: value for name, value in zip(NAMES, given, strict=True) if name in self._by_name}
        place = f"privileged={self.name!r}, task {trajectory.task!r}, turn {turn.number}"
        try:
            found = self._function(**named) if named else self._function(*given)
        except Exception as error:
            raise PrivilegedError(f"{place}: {type(error).__name__}: {error}") from error
        if found is not None and not isinstance(found, str):
            raise PrivilegedError(f"{place}: it returned {found!r:.80}; return a text or None")
        return found or ""


SourceSpec = str | PrivilegedSource | Callable[..., str | None]
"""A name of `SHIPPED`, ``"module:function"`` (the current folder counts), a function, or a source."""


def load_source(spec: SourceSpec) -> PrivilegedSource:
    """Loads a source; raises [`PrivilegedError`] if ``spec`` is none."""
    if not isinstance(spec, str):
        return spec if isinstance(spec, PrivilegedSource) else PrivilegedSource(spec)
    if spec in SHIPPED:
        return PrivilegedSource(SHIPPED[spec], spec)
    module, colon, name = spec.rpartition(":")
    if not colon:
        raise PrivilegedError(f"privileged={spec!r} is unknown; use one of {', '.join(SHIPPED)}, or module:function")
    return PrivilegedSource(function_named(f"privileged={spec!r}", module, name), spec)


def _by_name(function: Callable, name: str) -> set[str]:
    """Returns the names that a function asks for; none if it takes five arguments by their places."""
    named = set(NAMES) & set(inspect.signature(function).parameters)
    if named and accepts(function, **dict.fromkeys(named)):
        return named
    if accepts(function, *NAMES):
        return set()
    asked = f"give it parameters of {', '.join(NAMES)}, or five in this order"
    raise PrivilegedError(f"privileged={name!r} takes {inspect.signature(function)}; {asked}")

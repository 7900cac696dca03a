"""Skills without a file: a function of the user's from a task to the text that the teacher may read."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from alignopsd_trl.skills.rendering import Rendered


class SkillFunction:
    """Stands where a `SkillBank` stands.

    Args:
        function (`Callable[..., str]`):
            From the task's text, its ``task_key`` and its ``data_source``, or from the task's text and its row of the
            dataset, to the skill block; an empty text for none. Equal tasks must get equal texts, on every process.

    Attributes:
        reads_row (`bool`): whether it takes two arguments, the second of which is the row.
        environment, version: the function's name, and nothing: what a bank's file says of itself.
        checksum (`str`): first 16 hex digits of the sha256 over the function's source.
    """

    version = ""

    def __init__(self, function: Callable[..., str]):
        self._function, self.reads_row = function, _takes_two(function)
        self.environment = getattr(function, "__qualname__", type(function).__name__)
        self.checksum = hashlib.sha256(_source(function).encode()).hexdigest()[:16]

    def block(
        self,
        task_text: str,
        task_key: str | None,
        data_source: str | None,
        count_tokens: Callable[[str], int],
        budget: int,
        row: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The function's text.

        Raises:
            TypeError: if it is no text.
            ValueError: if it is longer than the budget.
        """
        given = (row,) if self.reads_row else (task_key, data_source)
        text = self._function(task_text, *given)
        if not isinstance(text, str):
            raise TypeError(f"skill function {self.environment} returned {text!r} for {task_text!r}; return a text")
        if text and (length := count_tokens(text)) > budget:
            raise ValueError(
                f"skill function {self.environment} returned {length} tokens for the task {task_text!r}, but "
                f"skill_tokens={budget}; shorten the text or raise skill_tokens"
            )
        return Rendered(text, (self.environment,) if text else (), 0)


def _takes_two(function: Callable) -> bool:
    """Whether a function takes two arguments by place, neither more nor fewer."""
    places = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in places):
        return False
    return len([one for one in places if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]) == 2


def _source(function: Callable) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # a callable object, or a function made at run time
        return repr(type(function))

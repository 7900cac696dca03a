"""Skills from a user's function, which maps a task to the text that the teacher may read."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from alignopsd_trl.skills.rendering import Rendered
from alignopsd_trl.skills.schema import SkillBankError


class SkillFunction:
    """Skills from a function, in place of a `SkillBank`.

    Args:
        function: returns the skill block of a task. It takes the task's text, its ``task_key`` and its ``data_source``,
            or the task's text and its row of the dataset. An empty text means no skill. Equal tasks must get equal
            texts in every process.

    Attributes:
        reads_row (`bool`): whether the function takes two arguments, of which the second is the row.
        environment, version: the function's name and an empty text, in place of the fields of a bank's file.
        checksum (`str`): first 16 hex digits of the sha256 over the function's source.

    Raises:
        SkillBankError: if the function takes neither two nor three arguments.
    """

    version = ""

    def __init__(self, function: Callable[..., str]):
        self.environment = self._id = getattr(function, "__qualname__", type(function).__name__)
        self._about = f"skill function {self.environment}"
        self._function, self.reads_row = function, _reads_row(function, self.environment)
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
        """Returns the task's text as a skill block.

        Raises:
            SkillBankError: if the function or the column has no text for the task, or one that is longer than the
                budget.
        """
        text = self._text(task_text, task_key, data_source, row)
        if text and (length := count_tokens(text)) > budget:
            raise SkillBankError(
                f"{self._about} has {length} tokens for the task {task_text!r:.80}, but skill_tokens={budget}; "
                "shorten the text or raise skill_tokens"
            )
        return Rendered(text, (self._id,) if text else (), 0)

    def _text(self, task_text: str, task_key: str | None, data_source: str | None, row: Mapping | None) -> str:
        text = self._function(task_text, *((row,) if self.reads_row else (task_key, data_source)))
        if not isinstance(text, str):
            raise SkillBankError(f"{self._about} returned {text!r:.80}; return a text")
        return text


def _reads_row(function: Callable, name: str) -> bool:
    """Returns whether a function takes two arguments (the task's text and its row); `False` for one that takes three.

    Raises:
        SkillBankError: if it takes neither.
    """
    signature = inspect.signature(function)
    for count in (3, 2):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 2
    raise SkillBankError(
        f"skill function {name}{signature} can't be called with (task_text, task_key, data_source) or with "
        "(task_text, row); give it these arguments"
    )


def _source(function: Callable) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # a callable object, or a function made at run time
        return repr(type(function))

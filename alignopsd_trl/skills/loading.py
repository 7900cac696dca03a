"""Loads skills by name, from a file, from a column of the dataset, which holds hints, reference solutions or past
trajectories, or from a user's function."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from alignopsd_trl.encoder import Encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.skills.bank import Rendered, SkillBank, render
from alignopsd_trl.skills.schema import SkillBankError

CONTEXT = "privileged_context"
"""The column that TRL's self-distillation trainers read. It is used where no other privileged text is named."""


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
        self._function, self.reads_row = function, not accepts(function, 1, 2, 3)
        if self.reads_row and not accepts(function, 1, 2):
            raise SkillBankError(
                f"{self._about}{inspect.signature(function)} can't be called with (task_text, task_key, data_source) "
                "or with (task_text, row); give it these arguments"
            )
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):  # a callable object, or a function made at run time
            source = repr(type(function))
        self.checksum = hashlib.sha256(source.encode()).hexdigest()[:16]

    def block(
        self,
        task_text: str,
        task_key: str | None,
        data_source: str | None,
        count_tokens: Callable[[str], int],
        budget: int,
        row: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Returns the task's text as a skill block. Raises `SkillBankError` if the function or the column has no text
        for the task, or one that is longer than the budget."""
        text = self._text(task_text, task_key, data_source, row)
        if text and (length := count_tokens(text)) > budget:
            raise SkillBankError(
                f"{self._about} has {length} tokens for the task {task_text!r:.80}, but skill_tokens={budget}; "
                "shorten the text or raise skill_tokens"
            )
        return Rendered(text, (self._id,) if text else ())

    def _text(self, task_text: str, task_key: str | None, data_source: str | None, row: Mapping | None) -> str:
        text = self._function(task_text, *((row,) if self.reads_row else (task_key, data_source)))
        if not isinstance(text, str):
            raise SkillBankError(f"{self._about} returned {text!r:.80}; return a text")
        return text


class SkillColumn(SkillFunction):
    """Skills from a column of the dataset, in place of a `SkillBank`.

    Args:
        name: column of the dataset, which holds a text, a list of texts or messages, or nothing for each task.

    Attributes:
        environment, version, checksum: the column's name, an empty text, and the first 16 hex digits of the name's
            sha256. The records hold the texts themselves.
    """

    def __init__(self, name: str):
        self._id, self._about, self.environment = name, f"column {name!r}", f"column {name}"
        self.reads_row, self.checksum = True, hashlib.sha256(name.encode()).hexdigest()[:16]

    def _text(self, task_text: str, task_key: str | None, data_source: str | None, row: Mapping | None) -> str:
        if row is None or self._id not in row:
            raise SkillBankError(
                f"skill_bank={self._id!r} names a column that the row of {task_text!r:.80} does not have"
            )
        found = row[self._id] or ""
        parts = found if isinstance(found, list) else [found]
        texts: list[Any] = [one.get("content") if isinstance(one, Mapping) else one for one in parts]
        text = "\n".join(texts) if all(isinstance(one, str) for one in texts) else found
        if not isinstance(text, str):
            raise SkillBankError(f"{self._about} holds {found!r:.80} for {task_text!r:.80}; give a text or a list")
        return text


Skills = SkillBank | SkillFunction
SkillSpec = str | Path | Skills | Callable[..., str]


def load_skills(spec: SkillSpec, encoder: Encoder | None = None, columns: Collection[str] = ()) -> Skills:
    """Loads the skills that the trainer's ``skill_bank`` or a command's ``--skill_bank`` names.

    Args:
        spec: a shipped bank's name, the path of a JSON file, a bank, one of ``columns``, a function ``(task_text,
            task_key, data_source) -> str`` or ``(task_text, row) -> str``, or ``"module:function"``; the current folder
            counts as a place to import from.
        encoder (`Encoder`, *optional*): scores the task types and skills of a bank.

    Raises:
        SkillBankError: if it is none of these.
    """
    if isinstance(spec, Skills):
        return spec
    if isinstance(spec, str) and spec in columns:
        return SkillColumn(spec)
    if not isinstance(spec, str | Path):
        return SkillFunction(spec)
    module, colon, name = str(spec).rpartition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), name)):
        return SkillFunction(function_named(f"skill bank {str(spec)!r}", module, name))
    return SkillBank.load(spec, encoder, columns=columns)


def foreign_bank(bank: Skills | None, suite: Suite) -> str:
    """Returns a warning if a bank was written for another environment, else an empty text."""
    family = (suite.name, suite.name.partition("_")[0], suite.skill_bank)  # searchqa_hops is a variant of searchqa
    if not isinstance(bank, SkillBank) or bank.environment in family:
        return ""
    own = f"its own is {suite.skill_bank!r}" if suite.skill_bank else "it has none of its own"
    return f"skill bank of {bank.environment!r} is used for environment {suite.name!r}; {own}"


def function_named(about: str, module: str, name: str) -> Callable:
    """Loads a user's function, also from the current folder; raises [`SkillBankError`], which begins with ``about``."""
    place = find_module(module)
    if place is None:
        raise SkillBankError(f"{about}: there is no module {module!r}; it must be importable from where you run")
    found = getattr(place, name, None)
    if not callable(found):
        raise SkillBankError(f"{about}: there is no function {name!r} in {place.__file__}")
    return found


def skill_source(bank: Skills, tokenizer: Callable[..., Any], budget: int) -> Callable[..., Rendered]:
    """Makes a `rollout.SkillSource` that gives the privileged text of a task within ``budget`` tokens. A bank retrieves
    it by the task text, once per task; a function or a column gives it for the task's row."""

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def source(
        task_text: str, task_key: str | None, data_source: str | None, row: Mapping[str, Any] | None = None
    ) -> Rendered:
        if isinstance(bank, SkillBank):
            return render(bank.retrieve(task_text, task_key, data_source), count, budget)
        return bank.block(task_text, task_key, data_source, count, budget, row)

    reads_row = getattr(bank, "reads_row", False)
    given = source if reads_row else cache(source)
    vars(given).update(reads_row=reads_row, is_users=type(bank) is SkillFunction)
    return given


def accepts(function: Callable, *places: Any, **names: Any) -> bool:
    """Returns whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*places, **names)
    except TypeError:
        return False
    return True

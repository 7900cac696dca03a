"""Loads skills by name, from a file, from a column of the dataset, or from a user's function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from alignopsd_trl.encoder import Encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.skills.bank import SkillBank
from alignopsd_trl.skills.function import SkillColumn, SkillFunction
from alignopsd_trl.skills.schema import SkillBankError

Skills = SkillBank | SkillFunction
SkillSpec = str | Path | Skills | Callable[..., str]


def load_skills(spec: SkillSpec, encoder: Encoder | None = None, columns: Collection[str] = ()) -> Skills:
    """Loads the skills that the trainer's ``skill_bank`` or a command's ``--skill_bank`` names.

    Args:
        spec: a shipped bank's name, the path of a JSON file, a bank, one of ``columns``, a function ``(task_text,
            task_key, data_source) -> str`` or ``(task_text, row) -> str``, or ``"module:function"``; the current folder
            counts as a place to import from.
        encoder (`Encoder`, *optional*): scores the task types and skills of a bank.
        columns (`Collection[str]`, *optional*): columns of the dataset.

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


def skill_source(
    bank: Skills, tokenizer: Callable[..., Any], budget: int
) -> Callable[..., tuple[str, tuple[str, ...]]]:
    """Makes a `rollout.SkillSource` that gives the privileged text of a task within ``budget`` tokens. A bank retrieves
    it by the task text, once per task; a function or a column gives it for the task's row."""

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def source(
        task_text: str, task_key: str | None, data_source: str | None, row: Mapping[str, Any] | None = None
    ) -> tuple[str, tuple[str, ...]]:
        block = bank.block(task_text, task_key, data_source, count, budget, row)
        return block.text, block.ids

    reads_row = getattr(bank, "reads_row", False)
    given = source if reads_row else cache(source)
    vars(given).update(reads_row=reads_row, is_users=type(bank) is SkillFunction)
    return given

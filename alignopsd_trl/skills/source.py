"""Gives the privileged text of a task within a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from alignopsd_trl.skills.bank import SkillBank
from alignopsd_trl.skills.function import SkillFunction


def skill_source(
    bank: SkillBank | SkillFunction, tokenizer: Callable[..., Any], budget: int
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

"""Skills that stand beside each task: a column of the dataset with hints, reference solutions or past trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from alignopsd_trl.skills.rendering import Rendered
from alignopsd_trl.skills.schema import SkillBankError


class SkillColumn:
    """Skills from a column of the dataset, in place of a `SkillBank`.

    Args:
        name: column of the dataset: a text for each task, several in a list, or nothing.

    Attributes:
        environment, version, checksum: the column's name, nothing, and 16 hex digits of the name; the texts themselves
            are in the records.
    """

    version = ""
    reads_row = True

    def __init__(self, name: str):
        self._name = name
        self.environment = f"column {name}"
        self.checksum = hashlib.sha256(name.encode()).hexdigest()[:16]

    def block(
        self,
        task_text: str,
        task_key: str | None,
        data_source: str | None,
        count_tokens: Callable[[str], int],
        budget: int,
        row: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The row's text.

        Raises:
            SkillBankError: if the row has no such column, or it holds something else than text, or one that is longer
                than the budget.
        """
        if row is None or self._name not in row:
            raise SkillBankError(
                f"skill_bank={self._name!r} names a column that the row of {task_text!r:.80} does not have"
            )
        found = row[self._name] or ""
        text = "\n".join(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else found
        if not isinstance(text, str):
            raise SkillBankError(
                f"column {self._name!r} holds {found!r:.80} for {task_text!r:.80}; give a text or a list"
            )
        if text and (length := count_tokens(text)) > budget:
            raise SkillBankError(
                f"column {self._name!r} has {length} tokens for the task {task_text!r:.80}, but skill_tokens={budget}; "
                "shorten the text or raise skill_tokens"
            )
        return Rendered(text, (self._name,) if text else (), 0)

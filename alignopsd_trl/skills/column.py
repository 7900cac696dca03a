"""Skills from a column of the dataset, which holds hints, reference solutions or past trajectories."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from alignopsd_trl.skills.function import SkillFunction
from alignopsd_trl.skills.schema import SkillBankError

CONTEXT = "privileged_context"
"""The column that TRL's self-distillation trainers read. It is used where no other privileged text is named."""


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

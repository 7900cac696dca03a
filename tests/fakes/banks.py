"""What a bank may say."""

from __future__ import annotations

from collections.abc import Iterator

from alignopsd_trl.skills import SkillBank


def sentences_of(bank: SkillBank) -> Iterator[str]:
    """Yields every sentence that a block may contain; a student's prompt may contain none."""
    for skill in (*bank.general, *(skill for kind in bank.task_types for skill in kind.skills)):
        yield skill.text
    for mistake in bank.mistakes:
        yield from (mistake.text, mistake.instead)

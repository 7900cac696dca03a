"""Renders a task's skills as the block of text that goes into the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.skills.schema import Mistake, Skill


@dataclass(frozen=True)
class Retrieved:
    """The skills of one task, best first. ``scores`` are the cosines of ``skills``, rounded to 6 decimals, or 0 if the
    skills are in file order. General skills and mistakes are always in file order."""

    type_keys: tuple[str, ...]
    skills: tuple[Skill, ...]
    scores: tuple[float, ...]
    general: tuple[Skill, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Identifiers in the order of rank: type skills, general skills, mistakes."""
        return tuple(item.id for item in (*self.skills, *self.general, *self.mistakes))


@dataclass(frozen=True)
class Rendered:
    """A skill block: its ``text`` without a final line break, the ``ids`` of its items, and how many did not fit."""

    text: str
    ids: tuple[str, ...]
    dropped: int


def skill_budget(max_prompt_tokens: int) -> int:
    """Returns the tokens of a prompt that the skill block may take: a quarter, at most 512."""
    return min(512, max_prompt_tokens // 4)


def render(retrieved: Retrieved, count_tokens: Callable[[str], int], budget: int) -> Rendered:
    """Renders the skill block of a prompt, from as many whole items as ``budget`` tokens hold.

    If all are too long, the last item is dropped until the rest fits: first mistakes, then general skills, then skills
    of the task's type. The first of these always stays.
    """
    skills, general, mistakes = list(retrieved.skills), list(retrieved.general), list(retrieved.mistakes)
    sections: list[list[Any]] = [skills, general, mistakes]
    total = sum(map(len, sections))
    while count_tokens(_block(skills, general, mistakes)) > budget and sum(map(len, sections)) > 1:
        next(section for section in reversed(sections) if section).pop()
    ids = tuple(item.id for section in sections for item in section)
    return Rendered(_block(skills, general, mistakes), ids, total - len(ids))


def _block(skills: Sequence[Skill], general: Sequence[Skill], mistakes: Sequence[Mistake]) -> str:
    lines = ["Guidance for this kind of task:", *(item.line for item in (*skills, *general))]
    if mistakes:
        lines += ["Mistakes to avoid:", *(item.line for item in mistakes)]
    return "\n".join(lines)

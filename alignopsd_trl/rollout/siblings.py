"""Sibling groups, several episodes of one task: their seeds, and the check that they start in the same state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening
from alignopsd_trl.turns import Seeds


def episode_seeds(task_id: str, step: int, sibling: int) -> Seeds:
    """Returns the seeds of an episode: one that all siblings of a task share at a training step, and one of its own."""
    return Seeds(episode_seed(task_id, step, 0), episode_seed(task_id, step, sibling))


def episode_seed(*parts: object) -> int:
    """Returns a seed below 2**32 that depends on its parts alone; an episode's are task, training step and sibling."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


class SiblingsDiffer(ValueError):
    """Raised when siblings of a task do not start in the same state, so that their outcomes can't be compared."""


def check_openings(
    openings: Sequence[Opening | Failure], tasks: Sequence[str], environment: str, advice: str = "Draw all from 'seed'"
) -> None:
    """Checks that `reset` returned the same for all siblings of a task; episodes that failed are left out.

    Args:
        advice: says what to change in this environment (`ValidatedBatch.sibling_advice`).

    Raises:
        SiblingsDiffer: if not; the message shows two reset results and says what to do.
    """
    first: dict[str, Opening] = {}
    for task, opening in zip(tasks, openings, strict=True):
        if not isinstance(opening, Opening):
            continue
        for name in ("task_text", "observation", "admissible", "context", "category", "task_key", "data_source"):
            one, other = getattr(first.setdefault(task, opening), name), getattr(opening, name)
            if _differ(one, other):
                one, other = _excerpts(str(one), str(other))
                raise SiblingsDiffer(
                    f"environment {environment}, task {task!r}: siblings open differently, {one!r} and {other!r} "
                    f"({name}). A group is several tries at one task. {advice}; set openings_may_differ = True if "
                    "they are meant to"
                )


def check_prompts(
    prompts: Iterable[tuple[tuple[str, str], str]], first: dict[tuple[str, str], str], environment: str
) -> None:
    """Checks that all siblings of a task with the same skill read the same first prompt.

    Args:
        prompts: tasks with skills, and first prompts.
        first: the prompt of each, which is added where it is missing.

    Raises:
        SiblingsDiffer: if not; the message shows two prompts.
    """
    for about, prompt in prompts:
        if prompt != first.setdefault(about, prompt):
            (task, _), (one, other) = about, _excerpts(first[about], prompt)
            raise SiblingsDiffer(
                f"environment {environment}, task {task!r}: siblings opened alike and read different first prompts, "
                f"{one!r} and {other!r}; let prompt.render(view, skill) depend on its arguments alone"
            )


def _differ(one: Any, other: Any) -> bool:
    """Whether values differ; those whose class does not define equality are not compared."""
    if one is other or type(one).__eq__ is object.__eq__:
        return False
    try:
        return bool(one != other)
    except ValueError:  # arrays compare by element
        return False


def _excerpts(one: str, other: str) -> tuple[str, str]:
    """Returns both texts around the first character that differs."""
    at = max(len(commonprefix([one, other])) - 20, 0)
    return one[at : at + 60], other[at : at + 60]

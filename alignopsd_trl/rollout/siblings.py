"""Sibling groups: several tries at one task, their seeds, and that they begin alike."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening
from alignopsd_trl.turns import Seeds


def episode_seeds(task_id: str, step: int, sibling: int) -> Seeds:
    """Seeds of an episode: functions of the task and the training step, and the second one of the sibling index too."""
    return Seeds(episode_seed(task_id, step, 0), episode_seed(task_id, step, sibling))


def episode_seed(task_id: str, step: int, sibling: int) -> int:
    """A number that is a function of the task, the training step and the sibling index, and of nothing else."""
    return _number(task_id, step, sibling)


def sampling_seed(run: int, task: str, seeds: Seeds, again: int, draw: str) -> int:
    """Seed of all that is sampled in an episode.

    Args:
        run: of the run or evaluation.
        task, seeds: of the episode.
        again: how many earlier episodes of the same play have the same ones.
        draw: tells plays of the same episodes apart.
    """
    return _number(run, task, *seeds, again, draw)


def turn_seed(episode: int, turn: int) -> int:
    """Seed of a turn's response, below 2**31: a function of the episode's `sampling_seed` and the turn's number, so
    that the order in which requests meet changes nothing."""
    return _number(episode, turn) % 2**31


def _number(*parts: object) -> int:
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def siblings_before(task_ids: Sequence[Sequence[str]], process: int) -> list[int]:
    """For each row of a process, how many rows of its task come earlier, on this process or one before it: a sibling
    index that no way of cutting the rows into batches and processes can move."""
    seen = Counter(identity for ids in task_ids[:process] for identity in ids)
    places = []
    for identity in task_ids[process]:
        places.append(seen[identity])
        seen[identity] += 1
    return places


class SiblingsDiffer(ValueError):
    """Siblings of a task that do not start in the same state: what they did can't be held against each other."""


def check_openings(openings: Sequence[Opening | Failure], tasks: Sequence[str], environment: str) -> None:
    """Holds the siblings of each task to the same opening; episodes that failed are left out.

    Raises:
        SiblingsDiffer: shows two openings and says what to do.
    """
    first: dict[str, Opening] = {}
    for task, opening in zip(tasks, openings, strict=True):
        if not isinstance(opening, Opening):
            continue
        field = _where_they_differ(first.setdefault(task, opening), opening)
        if field is not None:
            one, other = _excerpts(getattr(first[task], field), getattr(opening, field))
            raise SiblingsDiffer(
                f"environment {environment}, task {task!r}: siblings open differently, {one!r} and {other!r} "
                f"({field}). A group is several tries at one task. Give reset() a parameter 'seed' and draw everything "
                "from it (siblings get the same), or put what it draws into columns of the dataset; set "
                "openings_may_differ = True if they are meant to"
            )


def _where_they_differ(one: Opening, other: Opening) -> str | None:
    """The first field that differs. A context whose class does not define equality can't be compared."""
    for name in ("task_text", "observation", "admissible", "context", "category", "task_key", "data_source"):
        left, right = getattr(one, name), getattr(other, name)
        if type(left).__eq__ is not object.__eq__ and _differ(left, right):
            return name
    return None


def _differ(left: Any, right: Any) -> bool:
    try:
        return left is not right and bool(left != right)
    except ValueError:  # arrays answer by element
        return False


def _excerpts(left: Any, right: Any) -> tuple[str, str]:
    """Both texts around the first character that differs."""
    left, right = str(left), str(right)
    at = max(next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0) - 20, 0)
    return left[at : at + 60], right[at : at + 60]

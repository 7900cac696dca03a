"""Sibling groups, several episodes of one task: their seeds, and the check that they start in the same state."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening
from alignopsd_trl.turns import Seeds


def episode_seeds(task_id: str, step: int, sibling: int) -> Seeds:
    """Returns the seeds of an episode. Both are functions of task and training step; the second one also depends on the
    sibling index."""
    return Seeds(episode_seed(task_id, step, 0), episode_seed(task_id, step, sibling))


def episode_seed(task_id: str, step: int, sibling: int) -> int:
    """Returns a seed that depends on the task, the training step and the sibling index alone."""
    return _number(task_id, step, sibling)


def sampling_seed(run: int, task: str, seeds: Seeds, again: int, draw: str) -> int:
    """Returns the seed of all that is sampled in an episode.

    Args:
        run: seed of the run or evaluation.
        task, seeds: of the episode.
        again: the number of earlier episodes in the same play with equal task and seeds.
        draw: tells plays of the same episodes apart.
    """
    return _number(run, task, *seeds, again, draw)


def turn_seed(episode: int, turn: int) -> int:
    """Returns the seed of a turn's response, below 2**31. It depends on the episode's `sampling_seed` and the turn's
    number alone, so that the order of requests changes nothing."""
    return _number(episode, turn) % 2**31


def _number(*parts: object) -> int:
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def siblings_before(task_ids: Sequence[Sequence[str]], process: int) -> list[int]:
    """Returns the sibling index of each row of a process: the number of rows of the same task before it, on this
    process or one before it. It does not depend on how rows are cut into batches and processes."""
    seen = Counter(identity for ids in task_ids[:process] for identity in ids)
    places = []
    for identity in task_ids[process]:
        places.append(seen[identity])
        seen[identity] += 1
    return places


class SiblingsDiffer(ValueError):
    """Raised when siblings of a task do not start in the same state, so that their outcomes can't be compared."""


def check_openings(openings: Sequence[Opening | Failure], tasks: Sequence[str], environment: str) -> None:
    """Checks that `reset` returned the same for all siblings of a task; episodes that failed are left out.

    Raises:
        SiblingsDiffer: if not; the message shows two reset results and says what to do.
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
    """Returns the first field that differs. A context whose class does not define equality is not compared."""
    for name in ("task_text", "observation", "admissible", "context", "category", "task_key", "data_source"):
        left, right = getattr(one, name), getattr(other, name)
        if type(left).__eq__ is not object.__eq__ and _differ(left, right):
            return name
    return None


def _differ(left: Any, right: Any) -> bool:
    try:
        return left is not right and bool(left != right)
    except ValueError:  # arrays compare by element
        return False


def _excerpts(left: Any, right: Any) -> tuple[str, str]:
    """Returns both texts around the first character that differs."""
    left, right = str(left), str(right)
    at = max(next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0) - 20, 0)
    return left[at : at + 60], right[at : at + 60]

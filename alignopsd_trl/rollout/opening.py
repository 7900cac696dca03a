"""How episodes begin and end: identities, seeds, resets, the skills of their tasks, and what is known at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from alignopsd_trl.environments.base import Failure, Opening
from alignopsd_trl.environments.batch import ValidatedBatch, copied, guarded, limited
from alignopsd_trl.rollout.episode import Episode
from alignopsd_trl.rollout.siblings import check_openings, episode_seed
from alignopsd_trl.turns import Seeds, Trajectory

SkillSource = Callable[..., tuple[str, tuple[str, ...]]]
"""(task_text, task_key, data_source) -> the privileged text of a task and the ids of its skills, the same for all turns
and siblings of the task. If its attribute ``reads_row`` is true, it gets the task's dataset row as a fourth
argument; if ``is_users`` is true, it has the environments' time limit."""


def no_skills(task_text: str, task_key: str | None, data_source: str | None) -> tuple[str, tuple[str, ...]]:
    return "", ()


def skill_of(
    skills: SkillSource,
    opening: Opening,
    row: Mapping[str, Any],
    limited: Callable[[Callable[[], Any]], Any] = limited,
) -> tuple[str, tuple[str, ...]] | Failure:
    """Returns the privileged text of a task that was reset, or a `Failure` if the user's code raised or, called through
    ``limited``, was too slow."""
    given = (copied(dict(row)),) if getattr(skills, "reads_row", False) else ()  # user's code may write into it
    call = partial(skills, opening.task_text, opening.task_key, opening.data_source, *given)
    found = limited(call) if getattr(skills, "is_users", False) else guarded(call)
    return Failure(found.kind, f"its skill: {found.message}") if isinstance(found, Failure) else found


def episodes_of(
    rows: Sequence[Mapping[str, Any]],
    seeds: Sequence[Seeds],
    tasks: Sequence[str],
    draws: Sequence[str],
    sampling_seed: int = 0,
    privileged_siblings: int = 0,
) -> list[Episode]:
    """Makes episodes that are not open yet; the arguments are `Player.play`'s and [`Player`]'s."""
    seen: Counter[Any] = Counter()
    episodes = []
    for slot, (row, task) in enumerate(zip(rows, tasks, strict=True)):
        number, again = seen[task], seen[task, seeds[slot]]
        sampled = episode_seed(sampling_seed, task, *seeds[slot], again, draws[slot])
        privileged = number < privileged_siblings
        trajectory = Trajectory(dict(row), task, f"{number:04d}", seeds[slot], privileged=privileged)
        episodes.append(Episode(slot, trajectory, sampled))
        seen.update([task, (task, seeds[slot])])
    return episodes


def open_episodes(episodes: Sequence[Episode], environments: ValidatedBatch, skills: SkillSource) -> None:
    """Resets the environments and finds the skill of each task. A failure ends its own episode.

    Raises:
        SiblingsDiffer: if siblings open differently.
    """
    openings = environments.reset(range(len(episodes)), [_arguments(one.trajectory, environments) for one in episodes])
    if not environments.openings_may_differ:
        names = [one.trajectory.task for one in episodes]
        check_openings(openings, names, environments.name, environments.sibling_advice)
    known: dict[tuple[Any, ...], Any] = {}  # a function of the user's might tell siblings different texts
    for episode, opening in zip(episodes, openings, strict=True):
        if isinstance(opening, Failure):
            episode.fail(opening, environments.name)
            continue
        asked = episode.trajectory.task, opening.task_text, opening.task_key, opening.data_source
        if asked not in known or not getattr(skills, "is_users", False):
            known[asked] = skill_of(skills, opening, episode.trajectory.row, environments.limited)
        if isinstance(skill := known[asked], Failure):
            episode.fail(skill, environments.name)
        else:
            episode.start(opening, skill)


def _arguments(trajectory: Trajectory, environments: ValidatedBatch) -> dict[str, Any]:
    """Returns the arguments of `reset`."""
    seeds = trajectory.seeds._asdict()
    if not environments.takes_dynamics_seed:
        del seeds["dynamics_seed"]
    return {**seeds, **trajectory.row}


def finish_episodes(episodes: Sequence[Episode], environments: ValidatedBatch) -> None:
    """Calls the environments' `finish` for episodes that did not fail, and notes the `Ending`: what is known only when
    an episode is over, such as its reward."""
    ended = [episode for episode in episodes if not episode.trajectory.failed]
    endings = environments.finish([episode.slot for episode in ended])
    for episode, ending in zip(ended, endings, strict=True):
        if isinstance(ending, Failure):
            episode.fail(ending, environments.name)
        elif ending is not None:
            episode.finish(ending)

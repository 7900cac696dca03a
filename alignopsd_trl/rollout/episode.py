"""An episode while it is played: how it begins, goes on and ends.

Siblings, several episodes of one task, must start in the same state.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os.path import commonprefix
from typing import Any

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.environments.base import Ending, Failure, Opening, Projection, Record, Step, View, Wishes
from alignopsd_trl.environments.batch import ValidatedBatch, copied, guarded, limited
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.turns import Seeds, StopReason, Trajectory, Turn

SkillSource = Callable[..., tuple[str, tuple[str, ...]]]
"""(task_text, task_key, data_source) -> the privileged text of a task and the ids of its skills, the same for all turns
and siblings of the task. If its attribute ``reads_row`` is true, it gets the task's dataset row as a fourth
argument; if ``is_users`` is true, it has the environments' time limit."""


@dataclass
class Episode:
    """A trajectory that is being played, with the current observation and the history for the next prompt."""

    trajectory: Trajectory
    sampling_seed: int = 0
    prefix: Sequence[str] = ()  # actions that are replayed first
    slot: int = 0  # of the environments
    observation: str = ""
    admissible: tuple[str, ...] = ()
    context: Any = None
    records: list[Record] = field(default_factory=list)
    dialogues: dict[int, tuple[Conversation, Conversation]] = field(default_factory=dict)  # of turns: own, privileged
    wishes: Wishes = Wishes(0, None)
    passed: int = 0  # requests since the last turn that became none
    waited: list[float] = field(default_factory=list)  # seconds of each step, with those of episodes beside it
    failure: Failure | None = None
    finish_reward: float = 0.0  # what `finish` paid for the whole episode, which is also part of the last turn's

    def view(self, history_length: int) -> View:
        shown = tuple(self.records[-history_length:]) if history_length > 0 else ()
        text, number = self.trajectory.task_text, len(self.records)
        return View(text, self.observation, self.admissible, shown, number, self.context)

    def advance(self, turn: Turn, step: Step, max_turns: int, until_lost: bool = False) -> None:
        turn.chosen_on, turn.observation, turn.reward = self.observation, step.observation, step.reward
        turn.action_valid, turn.milestone = turn.action_valid and step.valid, step.milestone
        turn.metrics, turn.info = step.metrics, {**step.info, **step.metrics}
        self.records.append(Record(len(self.records) + 1, self.observation, turn.action, step.observation))
        self.observation, self.admissible, self.passed = step.observation, step.admissible, 0
        trajectory = self.trajectory
        trajectory.turns.append(turn)
        trajectory.reward += step.reward
        trajectory.won, trajectory.score = step.won, step.score
        if step.lost and trajectory.lost is None:
            trajectory.lost = len(trajectory.turns)
        if step.done:
            trajectory.stop = StopReason.DONE
        elif len(trajectory.turns) >= max_turns or (until_lost and step.lost):
            trajectory.stop = StopReason.TURN_LIMIT

    def end(self, ending: Ending) -> None:
        trajectory = self.trajectory
        for number, reward in ending.turn_rewards.items():
            trajectory.turns[number].reward += reward
        trajectory.reward += ending.reward + sum(ending.turn_rewards.values())
        self.finish_reward = ending.reward
        trajectory.won = trajectory.won if ending.won is None else ending.won
        trajectory.score = trajectory.score if ending.score is None else ending.score
        if trajectory.turns:
            last = trajectory.turns[-1]
            last.reward += ending.reward
            last.metrics = {**last.metrics, **ending.metrics}
            last.info = {**last.info, **ending.info, **ending.metrics}

    def project(self, turn: Turn, response: str, environments: ValidatedBatch) -> None:
        """Finds the action in a response; where the environment fails at it, so does the episode."""
        projection = environments.project(response, self.admissible)
        if isinstance(projection, Projection):
            turn.action, turn.action_valid = projection.action, projection.valid
        else:
            self.fail(projection, environments.name, turn)

    def fail(self, failure: Failure, environment: str, turn: Turn | None = None) -> None:
        """Ends the episode, with the turn that it failed in."""
        self.failure = failure
        self.trajectory.turns += [] if turn is None else [turn]
        self.trajectory.stop = StopReason.ENVIRONMENT_ERROR
        task = self.trajectory.row.get("task_id", self.trajectory.task)
        self.trajectory.message = f"{failure.kind}: environment {environment}, task {task!r}: {failure.message}"


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


def episode_seeds(task_id: str, step: int, sibling: int) -> Seeds:
    """Returns the seeds of an episode: one that all siblings of a task share at a training step, and one of its own."""
    return Seeds(episode_seed(task_id, step, 0), episode_seed(task_id, step, sibling))


def episode_seed(*parts: object) -> int:
    """Returns a seed below 2**32 that depends on its parts alone; an episode's are task, training step and sibling."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def turn_limit(environments: ValidatedBatch, wanted: int | None) -> int:
    """Returns the number of turns after which an episode ends, by default the environment's own. Raises `ValueError` if
    more are wanted."""
    own = environments.max_turns
    if wanted and wanted > own:
        raise ValueError(
            f"max_turns={wanted} is more than the {own} of environment {environments.name}, which may plan by it; "
            "raise the environment's own (for a shipped one: environment_options={'max_turns': ...})"
        )
    return wanted or own


def given_to_reset(environments: ValidatedBatch, row: Mapping[str, Any], seeds: Seeds) -> dict[str, Any]:
    """Returns a row with its seeds, as `reset` gets it."""
    return {**(seeds._asdict() if environments.takes_dynamics_seed else {"seed": seeds.seed}), **row}


def episodes_of(
    rows: Sequence[Mapping[str, Any]],
    seeds: Sequence[Seeds],
    tasks: Sequence[str],
    prefixes: Sequence[Sequence[str]],
    draws: Sequence[str],
    sampling_seed: int,
    privileged_siblings: int,
) -> list[Episode]:
    """Makes episodes that are not open yet; the arguments are `Player.play`'s and [`Player`]'s."""
    seen: Counter[Any] = Counter()
    episodes = []
    each = rows, tasks, seeds, prefixes or [()] * len(rows), draws or [""] * len(rows)
    for row, task, own, prefix, draw in zip(*each, strict=True):
        number, again = seen[task], seen[task, own]
        sampled = episode_seed(sampling_seed, task, *own, again, draw)
        trajectory = Trajectory(dict(row), task, f"{number:04d}", own, privileged=number < privileged_siblings)
        episodes.append(Episode(trajectory, sampled, prefix))
        seen.update([task, (task, own)])
    return episodes


class Stage:
    """Opens and finishes episodes. It knows what those that opened earlier tell about their siblings: the openings of
    tasks, and the texts of skills (a function of the user's might tell siblings different ones)."""

    def __init__(self, environments: ValidatedBatch, skills: SkillSource):
        self._environments, self._skills = environments, skills
        self._openings: dict[str, Opening] = {}
        self._texts: dict[tuple[Any, ...], Any] = {}

    def open(self, episodes: Sequence[Episode]) -> None:
        """Resets the environments and finds the skill of each task. A failure ends its own episode.

        Raises:
            SiblingsDiffer: if siblings open differently.
        """
        environments = self._environments
        for slot, episode in enumerate(episodes):
            episode.slot = slot
        arguments = [given_to_reset(environments, one.trajectory.row, one.trajectory.seeds) for one in episodes]
        openings = environments.reset([one.slot for one in episodes], arguments)
        for episode, opening in zip(episodes, openings, strict=True):
            if isinstance(opening, Failure):
                episode.fail(opening, environments.name)
                continue
            episode.observation, episode.admissible = opening.observation, opening.admissible
            episode.context = opening.context
            if not opening.later:
                self.begin(episode, opening)

    def begin(self, episode: Episode, opening: Opening) -> None:
        """Begins an episode with its opening and the skill of its task. Raises `SiblingsDiffer` if siblings do."""
        trajectory, environments, skills = episode.trajectory, self._environments, self._skills
        if not environments.openings_may_differ:
            names = environments.name, environments.sibling_advice
            check_openings([opening], [trajectory.task], *names, self._openings)
        asked = trajectory.task, opening.task_text, opening.task_key, opening.data_source
        if asked not in self._texts or not getattr(skills, "is_users", False):
            self._texts[asked] = skill_of(skills, opening, trajectory.row, environments.limited)
        if isinstance(skill := self._texts[asked], Failure):
            episode.fail(skill, environments.name)
            return
        trajectory.category = opening.category or str(trajectory.row.get("category", ""))
        trajectory.task_text = opening.task_text
        trajectory.skill_text, trajectory.skill_ids = skill

    def finish(self, episodes: Sequence[Episode]) -> None:
        """Calls the environments' `finish` for episodes that did not fail, and notes the `Ending`: what is known only
        when an episode is over, such as its reward."""
        ended = [episode for episode in episodes if not episode.trajectory.failed]
        endings = self._environments.finish([episode.slot for episode in ended])
        for episode, ending in zip(ended, endings, strict=True):
            if isinstance(ending, Failure):
                episode.fail(ending, self._environments.name)
            elif ending is not None:
                episode.end(ending)


class SiblingsDiffer(UserError):
    """Raised when siblings of a task do not start in the same state, so that their outcomes can't be compared."""


def check_openings(
    openings: Sequence[Opening | Failure],
    tasks: Sequence[str],
    environment: str,
    advice: str = "Draw all from 'seed'",
    known: dict[str, Opening] | None = None,
) -> None:
    """Checks that `reset` returned the same for all siblings of a task; episodes that failed are left out.

    Args:
        advice: says what to change in this environment (`ValidatedBatch.sibling_advice`).
        known: openings of siblings that began earlier, to which these are added.

    Raises:
        SiblingsDiffer: if not; the message shows two reset results and says what to do.
    """
    first: dict[str, Opening] = {} if known is None else known
    for task, opening in zip(tasks, openings, strict=True):
        if not isinstance(opening, Opening) or opening.later:
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


def check_first_prompt(trajectory: Trajectory, prompt: str, first: dict[tuple[str, str], str], name: str) -> None:
    """Checks that all siblings of a task with the same skill read the same first prompt.

    Args:
        first: the prompt of each task and skill, which is added where it is missing.

    Raises:
        SiblingsDiffer: if not; the message shows two prompts.
    """
    known = first.setdefault((trajectory.task, trajectory.skill_text), prompt)
    if prompt != known:
        one, other = _excerpts(known, prompt)
        raise SiblingsDiffer(
            f"environment {name}, task {trajectory.task!r}: siblings opened alike and read different first prompts, "
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

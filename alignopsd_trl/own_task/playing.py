"""Plays episodes without a policy: by a scripted player, an endpoint, or at random."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from alignopsd_trl.checks.tasks import check_sessions, seeded
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.adapters.calls import message_of
from alignopsd_trl.environments.base import Failure, Opening, Record, Step, View
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch
from alignopsd_trl.rollout.episode import SkillSource, no_skills, skill_of

SLOTS, SECONDS = 16, 60.0  # episodes played at once; most of one call of the environment
ENDED, TURN_LIMIT, FAILED = "ended", "turn limit", "failed"


@dataclass(frozen=True)
class Situation:
    """The input of a player: its view, the skill that its prompt shows, and the environment."""

    view: View
    skill: str
    environment: Any


@dataclass(frozen=True)
class Answer:
    """A response as a policy would write it. Calls of tools are Python between ``<action>`` tags, whatever the task's
    format. An ``action``, if given, is executed in place of the response's own."""

    response: str
    action: str | None = None


Actor = Callable[[Sequence[Situation]], Sequence[Answer]]
"""Answers all live episodes of one turn."""


@dataclass(frozen=True)
class PlayedTurn:
    """One turn: the view, the response, the executed action and its step. ``seconds`` is the time that the steps of all
    parallel episodes took."""

    view: View
    response: str
    action: str
    valid: bool
    step: Step
    seconds: float


@dataclass
class PlayedEpisode:
    """One episode. ``skill`` is the text retrieved for its task; ``skilled`` says whether the player read it."""

    row: Mapping[str, Any]
    skilled: bool
    opening: Opening | None = None
    skill: str = ""
    turns: list[PlayedTurn] = field(default_factory=list)
    reward: float = 0.0
    won: bool | None = None
    stop: str = ""
    message: str = ""

    def view(self, history_length: int) -> View:
        """Returns the view that the next prompt shows."""
        opening = self.opening
        assert opening is not None, "a view is of an episode that was opened"
        seen = self.turns[-1].step if self.turns else opening
        records = [
            Record(number, turn.view.observation, turn.action, turn.step.observation)
            for number, turn in enumerate(self.turns, start=1)
        ]
        shown = tuple(records[-history_length:]) if history_length else ()
        return View(opening.task_text, seen.observation, seen.admissible, shown, len(records), opening.context)

    def fail(self, failure: Failure) -> None:
        self.stop, self.message = FAILED, failure.message

    def end(self, ending: Any) -> None:
        """Adds the result of `finish`."""
        if isinstance(ending, Failure):
            self.fail(ending)
        elif ending is not None:
            self.reward += ending.reward
            self.won = self.won if ending.won is None else ending.won


def play(
    factory: Callable[[], Any],
    rows: Sequence[Mapping[str, Any]],
    actor: Actor,
    *,
    skills: SkillSource = no_skills,
    skilled_share: float = 0.5,
    time_limit: float = SECONDS,
) -> list[PlayedEpisode]:
    """Plays one episode per row, `SLOTS` at once, or as many as the environment allows.

    Args:
        skills: gives the skill of a task.
        skilled_share: share of the episodes, evenly spread, in which the player reads the skill.
    """
    if not 0 <= skilled_share <= 1:
        raise ValueError(f"skilled_share={skilled_share} must be from 0 to 1")
    share = 0.0 if skills is no_skills else skilled_share
    with closing(open_batch(factory, max(1, min(SLOTS, len(rows))), time_limit, here=True)) as batch:
        played, slots = [], batch.slots
        with Bar(len(rows), "play", most_turns=batch.max_turns) as progress:
            for first in range(0, len(rows), slots):
                numbered = enumerate(rows[first : first + slots], start=first)
                part = [PlayedEpisode(row, int((number + 1) * share) > int(number * share)) for number, row in numbered]
                _play_together(batch, part, actor, skills, progress)
                played += part
        return played


def check_room(factory: Callable[[], Any], rows: Sequence[Mapping[str, Any]], time_limit: float = SECONDS) -> None:
    """Raises `ValueError` if a server is away, or gives fewer sessions than `play` needs for these rows."""
    if isinstance(factory, OpenEnvEnvironment):
        check_sessions(factory, min(SLOTS, len(rows)), rows[0], time_limit, "play fewer with --episodes")


def _play_together(
    batch: ValidatedBatch, episodes: Sequence[PlayedEpisode], actor: Actor, skills: SkillSource, progress: Bar
) -> None:
    tasks = [seeded(batch, one.row) for one in episodes]
    for episode, opening in zip(episodes, batch.reset(range(len(episodes)), tasks), strict=True):
        _start(episode, opening, skills, batch.limited)
    for _ in range(batch.max_turns):
        live = [(slot, one) for slot, one in enumerate(episodes) if not one.stop]
        if not live:
            break
        _take_turn(batch, live, actor)
        progress(sum(bool(one.stop) for _, one in live), len(live))
    for episode in episodes:
        episode.stop = episode.stop or TURN_LIMIT
    ended = [(slot, one) for slot, one in enumerate(episodes) if one.stop != FAILED]
    for (_, episode), ending in zip(ended, batch.finish([slot for slot, _ in ended]), strict=True):
        episode.end(ending)


def _start(
    episode: PlayedEpisode, opening: Opening | Failure, skills: SkillSource, limited: Callable[[Any], Any]
) -> None:
    if isinstance(opening, Failure):
        episode.fail(opening)
    elif isinstance(skill := skill_of(skills, opening, episode.row, limited), Failure):
        episode.fail(skill)
    else:
        episode.opening, episode.skill = opening, skill[0]


def _take_turn(batch: ValidatedBatch, live: Sequence[tuple[int, PlayedEpisode]], actor: Actor) -> None:
    views = [episode.view(batch.history_length) for _, episode in live]
    if hasattr(batch.prompt, "wishes"):  # an agent's requests share one context, which goes on to the next request
        views = [replace(view, context=copy(view.context)) for view in views]
    answers = actor(
        [
            Situation(view, episode.skill if episode.skilled else "", playing(batch.environment(slot)))
            for view, (slot, episode) in zip(views, live, strict=True)
        ]
    )
    projected = [_projected(batch, view, answer) for view, answer in zip(views, answers, strict=True)]
    begun = time.perf_counter()
    steps = batch.step([slot for slot, _ in live], [action for action, _ in projected])
    seconds = time.perf_counter() - begun
    for (_, episode), view, answer, (action, valid), step in zip(live, views, answers, projected, steps, strict=True):
        if isinstance(step, Failure):
            episode.fail(step)
            continue
        episode.turns.append(PlayedTurn(view, answer.response, action, valid and step.valid, step, seconds))
        episode.reward += step.reward
        episode.won = step.won
        if step.done:
            episode.stop = ENDED


def _projected(batch: ValidatedBatch, view: View, answer: Answer) -> tuple[str, bool]:
    """Returns the action of an answer, and whether its form is valid."""
    if getattr(batch.prompt, "native", False):
        message, valid = native_message(answer.response)
        return json.dumps(message), valid
    if answer.action is not None:
        return answer.action, True
    found = batch.project(answer.response, view.admissible)
    return ("", False) if isinstance(found, Failure) else (found.action, found.valid)


def native_message(response: str) -> tuple[dict[str, Any], bool]:
    """Returns a response as a message for a chat template with tools, and whether its calls can be read."""
    try:
        return message_of(response), True
    except ValueError:
        return {"role": "assistant", "content": response}, False


def playing(environment: Any) -> Any:
    """Returns the object that a player may read: the user's own for an adapted class, else the environment."""
    return getattr(environment, "environment", None) or environment

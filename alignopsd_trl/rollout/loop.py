"""The only loop of play: each episode is one coroutine (`Loop._play`) that repeats answer and step. A policy answers
through `player.Player`; a scripted player, an endpoint or chance through `commands.own_task.playing`.

- Turns are counted here alone, so that a limit means the same on every benchmark. It is the environment's ``max_turns``
  or fewer. Requests of an agent that become no turn are free, up to `requests.MOST_PASSED` in a row.
- An episode ends where the environment says so (`Step.done`), at its last turn, where no prompt fits, and where it
  fails; with ``until_lost`` also where it can't be won any more.
- Each call of an environment, and a skill function of the user's, has the time limit of `open_batch`; a request has its
  sampler's. An episode as a whole has none.
- A failure (an environment that raises, is late or returns what it must not; a request without a response) ends its own
  episode alone, which is left out of the update. `ENDS` end all episodes on all processes.
- With a sampler that `waits_for_all`, the episodes of all processes take each turn as one synchronous batch. With
  others no episode waits for another.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from alignopsd_trl.common.process_group import together
from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Refusal
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.driver import BatchedCalls, Driver, Workers, result_of, steps_of
from alignopsd_trl.rollout.episode import Episode, SiblingsDiffer, SkillSource, Stage, no_skills, turn_limit
from alignopsd_trl.rollout.requests import pass_over, prompting_of
from alignopsd_trl.rollout.sampler import Sampler, SamplerDown
from alignopsd_trl.turns import Turn

ENDS = (EnvironmentsDown, SiblingsDiffer, SamplerDown)
"""Errors that end all episodes on all processes."""


@dataclass
class Loop(ABC):
    """Plays episodes from reset to `finish`. Subclasses say who answers (`_answer`), and set what that awaits.

    Args:
        environments: from `alignopsd_trl.environments.batch.open_batch`. Episodes beyond its slots wait until those
            before them have ended.
        max_turns: turns after which an episode ends, no more than the environment's own number, which is the default.
        agree: all-reduces the maximum of a number.
        each: all-gathers a value.
        progress: called with the numbers of episodes that ended and of turns that were played since the last call.
        until_lost: whether an episode ends, as at its turn limit, once the environment says that the turns left can't
            win it (`Step.lost`). For callers that need the winner alone.
    """

    environments: ValidatedBatch
    _: KW_ONLY
    skills: SkillSource = no_skills
    max_turns: int | None = None
    agree: Callable[[int], int] = lambda number: number
    each: Callable[[Any], list[Any]] = lambda value: [value]
    progress: Callable[[int, int], None] = lambda ended, turns: None
    until_lost: bool = False

    def __post_init__(self) -> None:
        self._limit = turn_limit(self.environments, self.max_turns)
        self._prompting = prompting_of(self.environments.prompt)
        self._samplers: list[Sampler] = []
        self._queues: list[BatchedCalls] = []

    @abstractmethod
    async def _answer(self, episode: Episode) -> Turn | Refusal | None:
        """Returns the next turn, with its response and action. Where there is none it ends the episode and returns
        `None`; an agent's own request may get a refusal instead."""

    def run(self, episodes: Sequence[Episode]) -> None:
        """Plays episodes that are not open yet to their ends, as many at a time as there are slots. Raises what
        `Player.play` does."""
        slots, self._stage = self.environments.slots, Stage(self.environments, self.skills)
        for first in range(0, self.agree(-(-len(episodes) // slots)) * slots, slots):
            part = episodes[first : first + slots]
            self._together(partial(self._stage.open, part))
            self._play_part(part)
            self._together(partial(self._stage.finish, part))

    def _play_part(self, episodes: Sequence[Episode]) -> None:
        """Plays opened episodes to their ends."""
        steps = steps_of(self.environments, self._samplers)
        works = [self._play(episode, steps) for episode in episodes]
        Driver(works, self._samplers, [*self._queues, steps]).run(self._together, self.agree)

    async def _play(self, episode: Episode, steps: BatchedCalls | Workers) -> None:
        """Plays one opened episode, after its prefix, to its end."""
        trajectory = episode.trajectory
        for number, action in enumerate(episode.prefix):
            if trajectory.stop is None:
                await self._step(episode, Turn(number, "", [], [], action=action), steps)
        while trajectory.stop is None:
            episode.wishes = self._prompting.wishes(self.environments.prompt, episode.view(1))
            if (turn := await self._answer(episode)) is None:
                break
            if trajectory.stop is None:
                await self._step(episode, turn, steps)
            self.progress(0, int(isinstance(turn, Turn)))
        self.progress(1, 0)

    async def _step(self, episode: Episode, turn: Turn | Refusal, steps: BatchedCalls | Workers) -> None:
        """Answers the environment. A refused request, and one that is not trained, becomes no turn."""
        kept, begun = turn if isinstance(turn, Turn) and episode.wishes.trained else None, time.perf_counter()
        step = await result_of(steps.submit(episode.slot, self._prompting.answer(turn)))
        episode.waited.append(time.perf_counter() - begun)
        if isinstance(step, Failure):
            episode.fail(step, self.environments.name, kept)
        elif kept is not None:
            episode.advance(kept, step, self._limit, self.until_lost)
        else:
            pass_over(episode, turn, step)
            if step.opening is not None and episode.trajectory.stop is None:
                self._stage.begin(episode, step.opening)

    def _together(self, act: Callable[[], None]) -> None:
        together(act, ENDS, self.each, self.agree)

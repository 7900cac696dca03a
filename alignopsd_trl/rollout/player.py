"""The only loop of play: each episode is one coroutine (`Loop._play`) that repeats answer and step.

A policy answers through [`Player`]: in rounds of training, panels, Monte Carlo rollouts and measurements of skills.
Scripted players, endpoints and chance answer through `commands.own_task.playing`. The rules are the same for all:

- Budgets: turns are counted here alone, so that a limit means the same on every benchmark. It is the environment's
  ``max_turns``, or fewer. Requests of an agent that become no turn are free, up to `requests.MOST_PASSED` in a row.
- Ends: the environment says `Step.done`, the turns are used up, no prompt fits the policy's limit, or the episode
  fails; with ``until_lost`` also that it can't be won any more.
- Time: each call of an environment has the limit of `open_batch`, a user's skill function too; a request has the
  sampler's own. An episode as a whole has none.
- A failure (an environment that raises, is too slow or returns what it must not, a request without a response) ends its
  own episode alone, which is left out of the update. Only `ENDS` end all episodes.

With a sampler that `waits_for_all`, the episodes of all processes take each turn as one synchronous batch. With others
no episode waits for another.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from alignopsd_trl.common.process_group import together
from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Refusal
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.driver import BatchedCalls, Driver, Lockstep, Workers, result_of, steps_of
from alignopsd_trl.rollout.episode import Episode, SiblingsDiffer, SkillSource, Stage, episodes_of, no_skills
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import reader_for
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.rollout.requests import pass_over, prompting_of
from alignopsd_trl.rollout.sampler import AnySampler, RequestFailed, Sampler, SamplerDown
from alignopsd_trl.turns import Seeds, Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
        own = self.environments.max_turns
        self._limit = self.max_turns or own
        if self._limit > own:
            raise ValueError(
                f"max_turns={self._limit} is more than the {own} of environment {self.environments.name}, which may "
                "plan by it; raise the environment's own (for a shipped one: environment_options={'max_turns': ...})"
            )
        self._prompting = prompting_of(self.environments.prompt)
        self._samplers: list[Sampler] = []
        self._queues: list[BatchedCalls] = []

    @abstractmethod
    async def _answer(self, episode: Episode) -> Turn | Refusal | None:
        """Returns the next turn, with its response and action. Where there is none it ends the episode and returns
        `None`; an agent's own request may get a refusal instead."""

    def run(self, episodes: Sequence[Episode], prefixes: Sequence[Sequence[str]] = ()) -> None:
        """Plays episodes that are not open yet to their ends, as many at a time as there are slots. Arguments and
        errors are `Player.play`'s."""
        given, slots = list(zip(episodes, prefixes or [()] * len(episodes), strict=True)), self.environments.slots
        self._stage = Stage(self.environments, self.skills)
        for place, episode in enumerate(episodes):
            episode.slot = place % slots
        for first in range(0, self.agree(-(-len(given) // slots)) * slots, slots):
            part, opened = given[first : first + slots], episodes[first : first + slots]
            self._together(partial(self._stage.open, opened))
            self._play_part(part)
            self._together(partial(self._stage.finish, opened))

    def _play_part(self, given: Sequence[tuple[Episode, Sequence[str]]]) -> None:
        """Plays opened episodes, each after its prefix, to their ends."""
        steps = steps_of(self.environments, self._samplers)
        works = [self._play(*one, steps) for one in given]
        Driver(works, self._samplers, [*self._queues, steps]).run(self._together, self.agree)

    async def _play(self, episode: Episode, prefix: Sequence[str], steps: BatchedCalls | Workers) -> None:
        """Plays one opened episode to its end."""
        trajectory = episode.trajectory
        for number, action in enumerate(prefix):
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


@dataclass
class Player(Loop):
    """Plays episodes with a policy.

    Args:
        sampler: the policy. With a batch sampler all episodes of all processes take each turn together.
        skills_in_rollout: whether the policy itself sees the skill; else only `Turn.privileged_ids` holds it.
        max_turns: as in [`Loop`]; by default as the renderer's options say, or the environment.
        privileged_siblings: the number of episodes of each group that are played with the skill in the prompt, the
            first ones. They are trained on the ordinary prompt, so the sampler's log-probs of their turns are dropped.
        teacher: samples the privileged siblings; by default ``sampler``.
        hand_over: context in which the engine has the teacher's weights, for an engine that holds the weights of either
            policy or teacher. Privileged siblings are then played after the others.
        sampling_seed: part of the seed of each request. The other parts are the episode's seeds, its number among
            episodes of equal seeds, its label in ``draws`` and the turn's number.
        update: the number of updates before these episodes are trained on, for `Turn.staleness`.
        settings: settings of sampling that an agent's own requests must not change; another value is refused.
    """

    renderer: Renderer
    sampler: AnySampler
    tokenizer: PreTrainedTokenizerBase
    end_ids: Sequence[int]
    skills_in_rollout: bool = False
    privileged_siblings: int = 0
    teacher: AnySampler | None = None
    hand_over: Callable[[], AbstractContextManager[None]] | None = None
    sampling_seed: int = 0
    update: int | None = None
    settings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        environments: ValidatedBatch,
        sampler: AnySampler,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        options: PlayOptions,
        reserved: int = 0,
        **others: Any,
    ) -> Player:
        """Makes a player with the environments' own prompts; ``reserved`` is as in [`Renderer`]."""
        renderer = Renderer(tokenizer, environments.prompt, options, reserved)
        return cls(environments, renderer, sampler, tokenizer, end_ids, **others)

    def __post_init__(self) -> None:
        self._reader = reader_for(self.tokenizer, self.environments, self.renderer.options)
        self.max_turns = self.max_turns or self.renderer.options.max_turns
        super().__post_init__()

    def play(
        self,
        rows: Sequence[Mapping[str, Any]],
        seeds: Sequence[Seeds],
        tasks: Sequence[str],
        prefixes: Sequence[Sequence[str]] = (),
        draws: Sequence[str] = (),
    ) -> list[Trajectory]:
        """Plays one episode per dataset row to its end.

        Args:
            rows: dataset rows, each passed to ``reset(**row, seed=...)``, with ``dynamics_seed`` if `reset` takes it.
                A column of the same name takes precedence.
            seeds: of the episodes (`episode_seeds`).
            tasks: the identity of each row's sibling group, in which rollouts are numbered in order.
            prefixes: actions of each episode that are replayed before the policy takes over; their turns have neither
                prompt nor response.
            draws: labels that tell plays of the same episodes apart: another label samples other responses.

        Raises:
            EnvironmentsDown, SamplerDown: on all processes, if the environments or the sampler of one are down.
            SiblingsDiffer: on all processes, if siblings open differently (`TextEnvironment.openings_may_differ`).
            ValueError: for prefixes of a conversation, which would have no responses.
        """
        if self.renderer.converses and any(prefixes):
            raise ValueError("replayed actions have no responses to make a conversation of; use history='window'")
        episodes = episodes_of(rows, seeds, tasks, draws, self.sampling_seed, self.privileged_siblings)
        self._samplers = [
            one if isinstance(one, Sampler) else Lockstep(one, self.agree, lambda: self.renderer.encode(["."])[0])
            for one in ([self.sampler, self.teacher] if self.teacher else [self.sampler])
        ]
        asked = self.settings, getattr(self.sampler, "takes_schemas", False)
        prompting = self._prompting(self.environments, self.renderer, self.end_ids, self.skills_in_rollout, *asked)
        self._prompts = BatchedCalls(prompting.next_turns)
        self._queues = [self._prompts]
        self.run(episodes, prefixes)
        return [episode.trajectory for episode in episodes]

    def _play_part(self, given: Sequence[tuple[Episode, Sequence[str]]]) -> None:
        """Plays opened episodes, where one engine has the weights of policy or teacher first the policy's."""
        if self.hand_over is None:
            super()._play_part(given)
        else:
            super()._play_part([one for one in given if not one[0].trajectory.privileged])
            with self.hand_over():
                super()._play_part([one for one in given if one[0].trajectory.privileged])

    async def _answer(self, episode: Episode) -> Turn | Refusal | None:
        turn = await result_of(self._prompts.submit(episode.slot, episode))
        if isinstance(turn, Turn):
            await self._respond(episode, turn)
        return turn

    async def _respond(self, episode: Episode, turn: Turn) -> None:
        """Samples a response and finds the action in it."""
        privileged, policy, teacher = episode.trajectory.privileged, self._samplers[0], self._samplers[-1]
        sampler, prompt = (teacher, turn.privileged_ids) if privileged else (policy, turn.prompt_ids)
        try:
            response = await result_of(sampler.submit(episode.request(prompt)))
        except RequestFailed as error:
            failure = Failure("error", f"no response could be sampled: {error}")
            episode.fail(failure, self.environments.name, turn)
            return
        tools = getattr(episode.context, "tools", ())
        reading = self._reader.take(turn, response.ids, episode.wishes, self.end_ids, tools)
        if response.log_probs is not None and not privileged:
            turn.sampling_log_probs = list(response.log_probs[: len(turn.response_ids)])
        if self.update is not None and response.weights is not None:
            turn.staleness = self.update - response.weights
        if reading.action is None:
            episode.project(turn, reading.text, self.environments)

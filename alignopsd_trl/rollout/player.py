"""Plays episodes side by side. Each is one coroutine (`Player._play`) that repeats prompt, response and step.

With a sampler that `waits_for_all`, the episodes of all processes take each turn as one synchronous batch. With others
no episode waits for another. A failing environment ends its own episode only. Turns are counted here alone, so that a
turn limit means the same on every benchmark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Projection, Reply, Step, Wishes
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.driver import BatchedCalls, Driver, Lockstep, Workers, result_of
from alignopsd_trl.rollout.episode import (
    TOO_LONG,
    Episode,
    SiblingsDiffer,
    SkillSource,
    episode_seed,
    episodes_of,
    finish_episodes,
    no_skills,
    open_episodes,
)
from alignopsd_trl.rollout.prompting import Prompting
from alignopsd_trl.rollout.reading import Reader, reader_for
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.rollout.sampler import AnySampler, Request, RequestFailed, Sampler, SamplerDown
from alignopsd_trl.turns import Seeds, StopReason, Trajectory, Turn

Result = TypeVar("Result")
ENDS = (EnvironmentsDown, SiblingsDiffer, SamplerDown)
"""Errors that end all episodes on all processes."""


class Queues(NamedTuple):
    """The queues to which the episodes of a play submit calls."""

    prompts: BatchedCalls[Episode, Turn | Reply | None]
    sampler: Sampler
    teacher: Sampler
    steps: BatchedCalls[str, Step | Failure] | Workers


@dataclass
class Player:
    """Plays episodes with a policy.

    Args:
        environments: from `alignopsd_trl.environments.batch.open_batch`, with at least as many slots as episodes are
            played at once.
        sampler: the policy. With a batch sampler all episodes of all processes take each turn together.
        skills_in_rollout: whether the policy itself sees the skill; else only `Turn.privileged_ids` holds it.
        max_turns: turns after which an episode ends, no more than the environment's own number; by default as the
            renderer's options say, or the environment.
        agree: all-reduces the maximum of a number.
        each: all-gathers a value.
        progress: called with the numbers of episodes that ended and of turns that were played since the last call.
        reader: finds thinking and actions in responses; by default as the environments and the renderer's options say.
        until_lost: whether an episode ends, as at its turn limit, once the environment says that the turns left can't
            win it (`Step.lost`). For callers that need the winner alone.
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

    environments: ValidatedBatch
    renderer: Renderer
    sampler: AnySampler
    tokenizer: PreTrainedTokenizerBase
    end_ids: Sequence[int]
    skills: SkillSource = no_skills
    skills_in_rollout: bool = False
    max_turns: int | None = None
    agree: Callable[[int], int] = lambda number: number
    each: Callable[[Any], list[Any]] = lambda value: [value]
    progress: Callable[[int, int], None] = lambda ended, turns: None
    reader: Reader | None = None
    until_lost: bool = False
    privileged_siblings: int = 0
    teacher: AnySampler | None = None
    hand_over: Callable[[], AbstractContextManager[None]] | None = None
    sampling_seed: int = 0
    update: int | None = None
    settings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reader = self.reader or reader_for(self.tokenizer, self.environments, self.renderer.options)
        own = self.environments.max_turns
        self._limit = self.max_turns or self.renderer.options.max_turns or own
        if self._limit > own:
            raise ValueError(
                f"max_turns={self._limit} is more than the {own} of environment {self.environments.name}, which may "
                "plan by it; raise the environment's own (for a shipped one: environment_options={'max_turns': ...})"
            )

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
        draws = draws or [""] * len(rows)
        asked = rows, seeds, tasks, draws, self.sampling_seed, self.privileged_siblings
        episodes = self._together(lambda: open_episodes(episodes_of(*asked), self.environments, self.skills))
        schemas = getattr(self.sampler, "takes_schemas", False)
        prompting = Prompting(
            self.renderer, self.end_ids, self.environments, self.skills_in_rollout, self.settings, schemas
        )
        given = list(zip(episodes, prefixes or [()] * len(episodes), strict=True))
        if self.hand_over is None:
            self._drive(given, prompting)
        else:
            self._drive([one for one in given if not one[0].trajectory.privileged], prompting)
            with self.hand_over():
                self._drive([one for one in given if one[0].trajectory.privileged], prompting)
        self._together(lambda: finish_episodes(episodes, self.environments))
        return [episode.trajectory for episode in episodes]

    async def _play(self, episode: Episode, prefix: Sequence[str], queues: Queues) -> None:
        """Plays one opened episode to its end."""
        trajectory = episode.trajectory
        for number, action in enumerate(prefix):
            if trajectory.stop is None:
                await self._step(episode, Turn(number, "", [], [], action=action), queues)
        while trajectory.stop is None and (turn := await result_of(queues.prompts.submit(episode.slot, episode))):
            if isinstance(turn, Turn):
                await self._respond(episode, turn, queues)
            if trajectory.stop is None:
                await self._step(episode, turn, queues)
            self.progress(0, int(isinstance(turn, Turn)))
        self.progress(1, 0)

    def _drive(self, given: Sequence[tuple[Episode, Sequence[str]]], prompting: Prompting) -> None:
        """Plays episodes, each after its prefix, to their ends."""
        samplers = [
            one if isinstance(one, Sampler) else Lockstep(one, self.agree, lambda: self.renderer.encode(["."])[0])
            for one in ([self.sampler, self.teacher] if self.teacher else [self.sampler])
        ]
        alone = None if any(one.waits_for_all for one in samplers) else self.environments.worker
        queues = Queues(
            BatchedCalls(lambda _, episodes: prompting.next_turns(episodes)),
            samplers[0],
            samplers[-1],
            BatchedCalls(self.environments.step) if alone is None else Workers(self.environments, alone),
        )
        driver = Driver([self._play(*one, queues) for one in given], samplers, [queues.prompts, queues.steps])
        try:
            while True:
                self._together(driver.run)
                if not self.agree(driver.live):
                    break
                driver.meet()
        finally:
            driver.close()

    def _together(self, act: Callable[[], Result]) -> Result:
        """Calls ``act``. If it raises one of `ENDS` on any process, all processes raise that."""
        problem, found = None, None
        try:
            found = act()
        except ENDS as error:
            problem = error
        if self.agree(int(problem is not None)):
            problems = [one for one in self.each(problem) if one is not None]
            raise problem or problems[0]
        return cast("Result", found)

    async def _respond(self, episode: Episode, turn: Turn, queues: Queues) -> None:
        """Samples a response and parses the action in it."""
        privileged = episode.trajectory.privileged
        sampler, prompt = (queues.teacher, turn.privileged_ids) if privileged else (queues.sampler, turn.prompt_ids)
        wishes = episode.wishes
        seed = episode_seed(episode.sampling_seed, wishes.place) % 2**31  # whatever the order of requests
        request = Request(prompt, seed, episode=episode.slot, schema=wishes.schema)
        try:
            response = await result_of(sampler.submit(request))
        except RequestFailed as error:
            self._fail(episode, turn, Failure("error", f"no response could be sampled: {error}"))
            return
        length = response_end(response.ids, wishes, self._text)
        turn.response_ids = list(response.ids[:length])
        turn.response_text = self._text(turn.response_ids)
        ended = bool(turn.response_ids) and turn.response_ids[-1] in self.end_ids
        turn.truncated = not ended and not any(stop in turn.response_text for stop in wishes.stop)
        kept = response.log_probs is not None and not privileged
        turn.sampling_log_probs = list(response.log_probs[:length]) if kept else None
        if self.update is not None and response.weights is not None:
            turn.staleness = self.update - response.weights
        self._parse_action(episode, turn)

    async def _step(self, episode: Episode, turn: Turn | Reply, queues: Queues) -> None:
        """Answers the environment. A refused request, and one that is not trained, becomes no turn."""
        answer: Any = turn
        if isinstance(turn, Turn):
            prompt, response = len(turn.prompt_ids), len(turn.response_ids)
            told = {"prompt_tokens": prompt, "response_tokens": response, "truncated": turn.truncated}
            answer = Reply.of(turn.action, **told) if self.renderer.asks else turn.action
        kept = turn if isinstance(turn, Turn) and episode.wishes.trained else None
        step = await result_of(queues.steps.submit(episode.slot, answer))
        if isinstance(step, Failure):
            self._fail(episode, kept, step)
        elif kept is not None:
            episode.advance(kept, step, self._limit, self.until_lost)
        else:
            long = isinstance(answer, Reply) and answer.error == TOO_LONG
            episode.pass_over(step, StopReason.PROMPT_TOO_LONG if long else StopReason.DONE, self._limit)

    def _text(self, ids: Sequence[int]) -> str:
        decode: Any = self.tokenizer.decode
        return decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _parse_action(self, episode: Episode, turn: Turn) -> None:
        tools = getattr(episode.context, "tools", ())
        assert self.reader is not None, "`__post_init__` makes one"
        reading = self.reader.read(turn.prompt_ids, turn.response_ids, turn.response_text, tools)
        turn.thought = reading.thought
        if reading.action is not None:
            turn.action, turn.action_valid = reading.action, True
            return
        projection = self.environments.project(reading.text, episode.admissible)
        if isinstance(projection, Projection):
            turn.action, turn.action_valid = projection.action, projection.valid
        else:
            self._fail(episode, turn, projection)

    def _fail(self, episode: Episode, turn: Turn | None, failure: Failure) -> None:
        episode.trajectory.turns += [] if turn is None else [turn]
        episode.fail(failure, self.environments.name)


def response_end(ids: Sequence[int], wishes: Wishes, text: Callable[[Sequence[int]], str]) -> int:
    """Returns the number of a response's tokens up to the end of the first stop text, at most ``wishes.max_tokens``."""
    length = len(ids) if wishes.max_tokens is None else min(len(ids), wishes.max_tokens)
    found = [stop for stop in wishes.stop if stop in text(ids[:length])]
    if not found:
        return length
    return bisect_left(range(length), True, key=lambda count: any(stop in text(ids[:count]) for stop in found))

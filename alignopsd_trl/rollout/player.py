"""Plays episodes side by side. Each is one coroutine (`Loop._play`) that repeats answer and step, whoever answers: a
policy, which the [`Player`] prompts and samples, or another subclass of [`Loop`].

With a sampler that `waits_for_all`, the episodes of all processes take each turn as one synchronous batch. With others
no episode waits for another. A failing environment ends its own episode only. Turns are counted here alone, so that a
turn limit means the same on every benchmark.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.common.process_group import together
from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Rendered, Reply, Wishes
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.conversations import Conversation, oldest_to_drop
from alignopsd_trl.rollout.driver import BatchedCalls, Driver, Lockstep, Workers, result_of
from alignopsd_trl.rollout.episode import (
    TOO_LONG,
    Episode,
    Known,
    SiblingsDiffer,
    SkillSource,
    begin,
    check_first_prompt,
    episode_seed,
    episodes_of,
    finish_episodes,
    no_skills,
    open_episodes,
)
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import reader_for
from alignopsd_trl.rollout.renderer import Renderer, Shown, asks, text_of, wishes_of
from alignopsd_trl.rollout.sampler import AnySampler, Request, RequestFailed, Sampler, SamplerDown
from alignopsd_trl.turns import Seeds, StopReason, Trajectory, Turn

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
        self._samplers: list[Sampler] = []
        self._queues: list[BatchedCalls] = []

    @abstractmethod
    async def _answer(self, episode: Episode) -> Turn | Reply | None:
        """Returns the next turn, with its response and action. Where there is none it ends the episode and returns
        `None`; an agent's own request may get a refusal instead."""

    def run(self, episodes: Sequence[Episode], prefixes: Sequence[Sequence[str]] = ()) -> None:
        """Plays episodes that are not open yet to their ends, as many at a time as there are slots. Arguments and
        errors are `Player.play`'s."""
        given, slots = list(zip(episodes, prefixes or [()] * len(episodes), strict=True)), self.environments.slots
        self._known = Known({}, {})
        for place, episode in enumerate(episodes):
            episode.slot = place % slots
        for first in range(0, self.agree(-(-len(given) // slots)) * slots, slots):
            part, opened = given[first : first + slots], episodes[first : first + slots]
            self._together(partial(open_episodes, opened, self.environments, self.skills, self._known))
            self._play_part(part)
            self._together(partial(finish_episodes, opened, self.environments))

    def _play_part(self, given: Sequence[tuple[Episode, Sequence[str]]]) -> None:
        """Plays opened episodes, each after its prefix, to their ends."""
        in_step = not self._samplers or any(one.waits_for_all for one in self._samplers)
        worker = None if in_step else self.environments.worker
        steps = BatchedCalls(self.environments.step) if worker is None else Workers(self.environments, worker)
        driver = Driver([self._play(*one, steps) for one in given], self._samplers, [*self._queues, steps])
        try:
            while True:
                self._together(driver.run)
                if not self.agree(driver.live):
                    break
                driver.meet()
        finally:
            driver.close()

    async def _play(self, episode: Episode, prefix: Sequence[str], steps: BatchedCalls | Workers) -> None:
        """Plays one opened episode to its end."""
        trajectory, prompt = episode.trajectory, self.environments.prompt
        for number, action in enumerate(prefix):
            if trajectory.stop is None:
                await self._step(episode, Turn(number, "", [], [], action=action), steps)
        while trajectory.stop is None:
            episode.wishes = wishes_of(prompt, episode.view(1))
            if (turn := await self._answer(episode)) is None:
                break
            if trajectory.stop is None:
                await self._step(episode, turn, steps)
            self.progress(0, int(isinstance(turn, Turn)))
        self.progress(1, 0)

    async def _step(self, episode: Episode, turn: Turn | Reply, steps: BatchedCalls | Workers) -> None:
        """Answers the environment. A refused request, and one that is not trained, becomes no turn."""
        answer: Any = turn
        if isinstance(turn, Turn):
            prompt, response = len(turn.prompt_ids), len(turn.response_ids)
            told = {"prompt_tokens": prompt, "response_tokens": response, "truncated": turn.truncated}
            answer = Reply.of(turn.action, **told) if asks(self.environments.prompt) else turn.action
        kept, begun = turn if isinstance(turn, Turn) and episode.wishes.trained else None, time.perf_counter()
        step = await result_of(steps.submit(episode.slot, answer))
        episode.waited.append(time.perf_counter() - begun)
        if isinstance(step, Failure):
            episode.fail(step, self.environments.name, kept)
        elif kept is not None:
            episode.advance(kept, step, self._limit, self.until_lost)
        else:
            refusal, trajectory = getattr(answer, "error", ""), episode.trajectory
            episode.pass_over(step, StopReason.PROMPT_TOO_LONG if refusal == TOO_LONG else StopReason.DONE)
            if trajectory.stop is not None and not trajectory.turns:
                told = f"; its last request was refused: {answer}" if refusal else ""
                trajectory.message = f"the agent ended without a turn to train on{told}"
            elif step.opening is not None:
                begin(episode, step.opening, self.environments, self.skills, self._known)

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
        draws = draws or [""] * len(rows)
        episodes = episodes_of(rows, seeds, tasks, draws, self.sampling_seed, self.privileged_siblings)
        self._samplers = [
            one if isinstance(one, Sampler) else Lockstep(one, self.agree, lambda: self.renderer.encode(["."])[0])
            for one in ([self.sampler, self.teacher] if self.teacher else [self.sampler])
        ]
        self._first: dict[tuple[str, str], str] = {}
        self._prompts = BatchedCalls(self._next_turns)
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

    async def _answer(self, episode: Episode) -> Turn | Reply | None:
        turn = await result_of(self._prompts.submit(episode.slot, episode))
        if isinstance(turn, Turn):
            await self._respond(episode, turn)
        return turn

    async def _respond(self, episode: Episode, turn: Turn) -> None:
        """Samples a response and parses the action in it."""
        privileged, wishes = episode.trajectory.privileged, episode.wishes
        policy, teacher = self._samplers[0], self._samplers[-1]
        sampler, prompt = (teacher, turn.privileged_ids) if privileged else (policy, turn.prompt_ids)
        seed = episode_seed(episode.sampling_seed, wishes.place) % 2**31  # whatever the order of requests
        request = Request(prompt, seed, episode=episode.slot, schema=wishes.schema)
        try:
            response = await result_of(sampler.submit(request))
        except RequestFailed as error:
            failure = Failure("error", f"no response could be sampled: {error}")
            episode.fail(failure, self.environments.name, turn)
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

    def _text(self, ids: Sequence[int]) -> str:
        decode: Any = self.tokenizer.decode
        return decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _parse_action(self, episode: Episode, turn: Turn) -> None:
        tools = getattr(episode.context, "tools", ())
        reading = self._reader.read(turn.prompt_ids, turn.response_ids, turn.response_text, tools)
        turn.thought = reading.thought
        if reading.action is not None:
            turn.action, turn.action_valid = reading.action, True
        else:
            episode.project(turn, reading.text, self.environments)

    # The prompts of turns: rendered from views, or continued from a dialogue

    def _next_turns(self, _: Sequence[int], episodes: Sequence[Episode]) -> list[Turn | Reply | None]:
        """Returns the next turn of each episode. Where no prompt fits, it ends the episode and returns ``None``; an
        agent's own request gets a refusal.

        Raises:
            SiblingsDiffer: if siblings opened alike and read different first prompts.
        """
        turns = [self._asked(one) for one in episodes] if self.renderer.asks else self._made(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            trajectory = episode.trajectory
            if turn is None:
                trajectory.stop = StopReason.PROMPT_TOO_LONG
                trajectory.message = trajectory.message if trajectory.turns else self._too_long(episode)
            elif isinstance(turn, Turn) and not turn.number and episode.wishes.trained:
                if not self.environments.openings_may_differ:
                    check_first_prompt(trajectory, turn.prompt_text, self._first, self.environments.name)
        return [*turns]

    def _asked(self, episode: Episode) -> Turn | Reply:
        """Returns the turn of an agent's request, or why there is none."""
        for name, value in episode.wishes.settings.items():
            if self.settings.get(name, value) != value:
                told = f"{name}={value} is not the run's {self.settings[name]}, so that the policy would learn from "
                told += "what it does not sample; leave it out, or use AgentEnvironment(..., sampling='ignore')"
                return Reply.of(told, error="unsupported_value")
        if episode.wishes.schema is not None and not getattr(self.sampler, "takes_schemas", False):
            return Reply.of("this sampler takes no response_format with a schema", error="unsupported_value")
        try:
            self.renderer.check_request(episode.view(1))
            (turn,) = self._made([episode])
        except Exception as error:  # of any kind: the template's code runs on what an agent wrote
            return Reply.of(f"the chat template refuses this request: {error}", error="invalid_value")
        limit = f"max_prompt_length={self.renderer.max_length}"
        return turn or Reply.of(f"the prompt has more tokens than {limit}", error=TOO_LONG)

    def _too_long(self, episode: Episode) -> str:
        """Says how much too long a first prompt is, and what to change."""
        skill, view = episode.trajectory.skill_text, episode.view(0)
        bare, whole = map(len, self.renderer.encode([self.renderer.show(view, text) for text in ("", skill)]))
        share = f", {whole - bare:,} of them the skill's" if skill else ""
        limit, reserved = self.renderer.options.max_prompt_length, self.renderer.reserved
        remedy = "lower skill_tokens" if bare <= limit else "shorten what reset() returns"
        kept = f" less {reserved} for a later text" if reserved else ""
        return (
            f"its first prompt has {whole:,} tokens{share}, more than max_prompt_length={limit}{kept}; "
            f"raise that, or {remedy}"
        )

    def _made(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Renders prompts from views. The later prompts of a conversation continue its first one."""
        follows = [one.wishes.follows if self.renderer.converses else None for one in episodes]
        pairs = list(zip(episodes, follows, strict=True))
        shown = iter(self._show([episode for episode, earlier in pairs if earlier is None]))
        return [next(shown) if earlier is None else self._go_on(one, earlier) for one, earlier in pairs]

    def _go_on(self, episode: Episode, follows: int) -> Turn | None:
        last, view = episode.trajectory.turns[follows], episode.view(1)
        reply = self.renderer.reply(view)
        dialogues = own, privileged = self._taken(episode, follows)
        for dialogue in dict.fromkeys(dialogues):
            dialogue.go_on(last.response_ids, reply, self.end_ids)
        if self.renderer.asks:
            drop = 0 if len(privileged.ids) <= self.renderer.max_length else None
        else:
            drop = oldest_to_drop(privileged, self.renderer.max_length)
        if drop is None:
            return None
        episode.dialogues[view.step_count] = dialogues
        for dialogue in dict.fromkeys(dialogues):
            if drop:
                dialogue.forget(drop)
        shortened = not self.renderer.asks and len(own) < view.step_count
        turn = Turn(view.step_count, text_of(reply), [*own.ids], [*privileged.ids], history_shortened=shortened)
        turn.shown = own.shown(last.shown.view) if self.renderer.reserved else None
        return turn

    def _taken(self, episode: Episode, follows: int) -> tuple[Conversation, Conversation]:
        """Returns the dialogues of a turn, to go on with. Several requests of an agent may continue the same turn."""
        if not self.renderer.asks:
            return episode.dialogues.pop(follows)
        own, privileged = episode.dialogues[follows]
        other = copy(own)
        return other, other if privileged is own else copy(privileged)

    def _show(self, episodes: Sequence[Episode]) -> list[Turn | None]:
        """Makes turns whose prompts are rendered from views. A prompt that equals the privileged one takes its ids."""
        full = [episode.view(self.environments.history_length) for episode in episodes]
        fitted = self.renderer.fit(full, [episode.trajectory.skill_text for episode in episodes])
        prompts: list[Rendered] = [
            "" if one is None else one.shown if self.skills_in_rollout else self.renderer.show(one.view, "")
            for one in fitted
        ]
        both = list(zip(prompts, fitted, strict=True))
        encoded = iter(self.renderer.encode([prompt for prompt, one in both if one and prompt != one.shown]))
        turns: list[Turn | None] = []
        for episode, view, (prompt, one) in zip(episodes, full, both, strict=True):
            if one is None:
                turns.append(None)
                continue
            ids, same = (one.ids, True) if prompt == one.shown else (next(encoded), False)
            shortened = len(one.view.history) < len(view.history)
            turn = Turn(view.step_count, text_of(prompt), [*ids], [*one.ids], history_shortened=shortened)
            if self.renderer.reserved:
                turn.shown = Shown.of(one.view, self.renderer.asks)
            if self.renderer.converses and episode.wishes.trained:
                own = Conversation(self.renderer, prompt, ids)
                other = own if same else Conversation(self.renderer, one.shown, one.ids)
                episode.dialogues[view.step_count] = own, other
            turns.append(turn)
        return turns


def response_end(ids: Sequence[int], wishes: Wishes, text: Callable[[Sequence[int]], str]) -> int:
    """Returns the number of a response's tokens up to the end of the first stop text, at most ``wishes.max_tokens``."""
    length = len(ids) if wishes.max_tokens is None else min(len(ids), wishes.max_tokens)
    found = [stop for stop in wishes.stop if stop in text(ids[:length])]
    if not found:
        return length
    return bisect_left(range(length), True, key=lambda count: any(stop in text(ids[:count]) for stop in found))

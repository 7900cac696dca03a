"""Plays episodes with a policy: prompts it, samples its responses and finds the actions in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.base import Failure, Refusal
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.driver import BatchedCalls, Lockstep, result_of
from alignopsd_trl.rollout.episode import Episode, episode_seed, episodes_of
from alignopsd_trl.rollout.loop import Loop
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import reader_for
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.rollout.sampler import AnySampler, Request, RequestFailed, Sampler
from alignopsd_trl.turns import Seeds, Trajectory, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        episodes = episodes_of(rows, seeds, tasks, prefixes, draws, self.sampling_seed, self.privileged_siblings)
        self._samplers = [
            one if isinstance(one, Sampler) else Lockstep(one, self.agree, lambda: self.renderer.encode(["."])[0])
            for one in ([self.sampler, self.teacher] if self.teacher else [self.sampler])
        ]
        asked = self.settings, getattr(self.sampler, "takes_schemas", False)
        prompting = self._prompting(self.environments, self.renderer, self.end_ids, self.skills_in_rollout, *asked)
        self._prompts = BatchedCalls(prompting.next_turns)
        self._queues = [self._prompts]
        self.run(episodes)
        return [episode.trajectory for episode in episodes]

    def _play_part(self, episodes: Sequence[Episode]) -> None:
        """Plays opened episodes, where one engine has the weights of policy or teacher first the policy's."""
        if self.hand_over is None:
            super()._play_part(episodes)
        else:
            super()._play_part([one for one in episodes if not one.trajectory.privileged])
            with self.hand_over():
                super()._play_part([one for one in episodes if one.trajectory.privileged])

    async def _answer(self, episode: Episode) -> Turn | Refusal | None:
        """Makes the prompt, samples a response and finds the action in it."""
        turn = await result_of(self._prompts.submit(episode.slot, episode))
        if not isinstance(turn, Turn):
            return turn
        privileged, wishes = episode.trajectory.privileged, episode.wishes
        policy, teacher = self._samplers[0], self._samplers[-1]
        sampler, prompt = (teacher, turn.privileged_ids) if privileged else (policy, turn.prompt_ids)
        seed = episode_seed(episode.sampling_seed, wishes.place) % 2**31  # whatever the order of requests
        try:
            response = await result_of(sampler.submit(Request(prompt, seed, None, episode.slot, wishes.schema)))
        except RequestFailed as error:
            episode.fail(Failure("error", f"no response could be sampled: {error}"), self.environments.name, turn)
            return turn
        tools = getattr(episode.context, "tools", ())
        reading = self._reader.take(turn, response.ids, wishes, self.end_ids, tools)
        if response.log_probs is not None and not privileged:
            turn.sampling_log_probs = list(response.log_probs[: len(turn.response_ids)])
        if self.update is not None and response.weights is not None:
            turn.staleness = self.update - response.weights
        if reading.action is None:
            episode.project(turn, reading.text, self.environments)
        return turn

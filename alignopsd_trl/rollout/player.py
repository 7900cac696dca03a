"""Plays episodes side by side. Each is one coroutine: a prompt, a response, the environment's step, and again.

The sampler decides how episodes meet: with one that `waits_for_all` they take each turn together, on all processes;
with others nobody waits for anybody. A failing environment ends its own episode only. Turns are counted here and
nowhere else, so that a turn limit means the same on every benchmark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.chat.prompts import Renderer
from alignopsd_trl.chat.reading import Reader, reader_for
from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Projection, Step
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.rollout.driver import Driver, Gathered, answer
from alignopsd_trl.rollout.episode import Episode, blank_turn
from alignopsd_trl.rollout.faults import RequestFailed, SamplerDown
from alignopsd_trl.rollout.lanes import Lanes
from alignopsd_trl.rollout.prompting import Prompting, SkillSource, no_skills, skill_of
from alignopsd_trl.rollout.sampler import AnySampler, Request, Sampler, as_sampler
from alignopsd_trl.rollout.siblings import SiblingsDiffer, check_openings, sampling_seed, turn_seed
from alignopsd_trl.turns import Seeds, Trajectory, Turn

ENDS = (EnvironmentsDown, SiblingsDiffer, SamplerDown)
"""What ends the play of all episodes on all processes."""


class Desks(NamedTuple):
    """Where the episodes of a play get what they await."""

    prompts: Gathered[Episode, Turn | None]
    sampler: Sampler
    teacher: Sampler
    steps: Gathered[str, Step | Failure] | Lanes


@dataclass
class Player:
    """Plays episodes with a policy.

    Args:
        environments: from `alignopsd_trl.environments.batch.open_batch`; as many slots as episodes are played at once,
            at least.
        renderer: makes token ids of views.
        sampler: the policy. With a batch sampler all episodes of all processes take each turn together.
        tokenizer: decodes responses.
        end_ids: tokens that end a response.
        skills: privileged text of a task.
        skills_in_rollout: the policy itself sees the skill (rows of the table that say so); else only
            `Turn.privileged_ids` holds it.
        max_turns: turns after which an episode ends; the environment's own number by default, and no more than that.
        agree: maximum of a number over all processes.
        each: the values of all processes.
        progress: called with the numbers of episodes that ended and of turns that were played since the last call.
        reader: finds thinking and actions in responses; by default as the environments and the renderer's options say.
        privileged: turns hold the privileged prompt too (`Turn.privileged_ids`). Without it, prompts are cut as if they
            did.
        until_lost: an episode ends as at its turn limit once the environment says that the turns left can't win it
            (`Step.lost`): for who only asks who wins.
        privileged_siblings: the first so many episodes of each group are played with the skill in the prompt. What is
            trained on is the ordinary prompt, so the sampler's log-probs of these turns are dropped.
        teacher: plays them; by default ``sampler``.
        sampling_seed: goes into the seed of each request (`turn_seed`), beside the episode's own seeds and the turn's
            number.
        update: updates before these episodes are trained on; tells `Turn.staleness`.
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
    privileged: bool = True
    until_lost: bool = False
    privileged_siblings: int = 0
    teacher: AnySampler | None = None
    sampling_seed: int = 0
    update: int | None = None

    def __post_init__(self) -> None:
        self.reader = self.reader or reader_for(self.tokenizer, self.environments, self.renderer.options)
        self._prompting = Prompting(
            self.renderer, self.end_ids, self.environments.history_length, self.skills_in_rollout, self.privileged
        )
        own = self.environments.max_turns
        if self.max_turns is not None and self.max_turns > own:
            raise ValueError(
                f"max_turns={self.max_turns} is more than the {own} of environment {self.environments.name}, which may "
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
        """One finished trajectory per dataset row.

        Args:
            rows: dataset rows; each is handed to ``reset(**row, seed=...)``, and ``dynamics_seed`` where it is asked
                for. A column of such a name goes first.
            seeds: of the episodes (`episode_seeds`).
            tasks: identity of each row's sibling group; rollouts are numbered inside it in order.
            prefixes: actions of each episode that are replayed before the policy takes over; their turns have neither
                prompt nor response.
            draws: tell plays of the same episodes apart, so that other responses are sampled in each.

        Raises:
            EnvironmentsDown, SamplerDown: on all processes, if the environments or the sampler of one are down.
            SiblingsDiffer: on all processes, if siblings open differently (`TextEnvironment.openings_may_differ`).
            ValueError: for prefixes of a conversation, which would have no responses.
        """
        if self.renderer.converses and any(prefixes):
            raise ValueError("actions alone make no conversation to walk on from; use history='window'")
        episodes = self._begin(rows, seeds, tasks, draws or [""] * len(rows))
        self._together(lambda: self._open(episodes))
        desks = self._desks()
        given = prefixes or [()] * len(episodes)
        works = [self._play(*one, desks) for one in zip(episodes, given, strict=True)]
        others = [] if desks.teacher is desks.sampler else [desks.teacher]
        driver = Driver(works, [desks.sampler, *others], [desks.prompts, desks.steps])
        try:
            while True:
                self._together(driver.run)
                if not self.agree(driver.live):
                    break
                driver.meet()
        finally:
            driver.close()
        self._together(lambda: self._finish(episodes))
        return [episode.trajectory for episode in episodes]

    def _together(self, act: Callable[[], None]) -> None:
        """What can't be played with on one process ends the play of all, in the same round and with its error."""
        problem: Exception | None = None
        try:
            act()
        except ENDS as error:
            problem = error
        if self.agree(int(problem is not None)):
            kind = next((place for place, kind in enumerate(ENDS) if isinstance(problem, kind)), None)
            told = [(place, text) for place, text in self.each((kind, str(problem))) if place is not None]
            raise problem or ENDS[told[0][0]](told[0][1])

    def _desks(self) -> Desks:
        own, other = (
            as_sampler(one, self.agree, lambda: self.renderer.encode(["."])[0])
            for one in (self.sampler, self.teacher or self.sampler)
        )
        other = other if self.teacher else own
        lane = None if own.waits_for_all or other.waits_for_all else self.environments.lane
        return Desks(
            Gathered(lambda _, episodes: self._prompting.next_turns(episodes)),
            own,
            other,
            Gathered(self.environments.step) if lane is None else Lanes(self.environments, lane),
        )

    async def _play(self, episode: Episode, prefix: Sequence[str], desks: Desks) -> None:
        """One episode from its opening to its end."""
        for number, action in enumerate(prefix):
            if episode.live:
                turn = blank_turn(number, "", [], [], False)
                turn.action = action
                await self._step(episode, turn, desks)
        while episode.live and (turn := await answer(desks.prompts.ask(episode.slot, episode))):
            await self._respond(episode, turn, desks)
            if episode.live:
                await self._step(episode, turn, desks)
            self.progress(0, 1)
        self.progress(1, 0)

    async def _respond(self, episode: Episode, turn: Turn, desks: Desks) -> None:
        """Samples a response and reads the action in it."""
        privileged = episode.trajectory.privileged
        sampler, prompt = (desks.teacher, turn.privileged_ids) if privileged else (desks.sampler, turn.prompt_ids)
        seed = turn_seed(episode.sampling_seed, turn.number)
        try:
            response = await answer(sampler.submit(Request(prompt, seed, episode=episode.slot)))
        except RequestFailed as error:
            self._fail(episode, turn, Failure("error", f"no response could be sampled: {error}"))
            return
        turn.response_ids = list(response.ids)
        decode: Any = self.tokenizer.decode
        turn.response_text = decode(turn.response_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        turn.truncated = not turn.response_ids or turn.response_ids[-1] not in self.end_ids
        kept = response.log_probs is not None and not privileged
        turn.sampling_log_probs = list(response.log_probs) if kept else None
        if self.update is not None and response.weights is not None:
            turn.staleness = self.update - response.weights
        self._project(episode, turn)

    async def _step(self, episode: Episode, turn: Turn, desks: Desks) -> None:
        step = await answer(desks.steps.ask(episode.slot, turn.action))
        if isinstance(step, Failure):
            self._fail(episode, turn, step)
        else:
            episode.advance(turn, step, self.max_turns or self.environments.max_turns, self.until_lost)

    def _begin(
        self,
        rows: Sequence[Mapping[str, Any]],
        seeds: Sequence[Seeds],
        tasks: Sequence[str],
        draws: Sequence[str],
    ) -> list[Episode]:
        seen: Counter[Any] = Counter()
        episodes = []
        for slot, (row, task) in enumerate(zip(rows, tasks, strict=True)):
            number, again = seen[task], seen[task, seeds[slot]]
            sampled = sampling_seed(self.sampling_seed, task, seeds[slot], again, draws[slot])
            privileged = number < self.privileged_siblings
            trajectory = Trajectory(dict(row), task, f"{number:04d}", seeds[slot], privileged=privileged)
            episodes.append(Episode(slot, trajectory, sampled))
            seen.update([task, (task, seeds[slot])])
        return episodes

    def _task(self, trajectory: Trajectory) -> dict[str, Any]:
        """What `reset` gets."""
        seeds = trajectory.seeds._asdict()
        if not self.environments.takes_dynamics_seed:
            del seeds["dynamics_seed"]
        return {**seeds, **trajectory.row}

    def _open(self, episodes: Sequence[Episode]) -> None:
        openings = self.environments.reset(range(len(episodes)), [self._task(one.trajectory) for one in episodes])
        if not self.environments.openings_may_differ:
            check_openings(openings, [one.trajectory.task for one in episodes], self.environments.name)
        for episode, opening in zip(episodes, openings, strict=True):
            if isinstance(opening, Failure):
                episode.fail(opening, self.environments.name)
            elif isinstance(skill := skill_of(self.skills, opening, episode.trajectory.row), Failure):
                episode.fail(skill, self.environments.name)
            else:
                episode.start(opening, skill)

    def _project(self, episode: Episode, turn: Turn) -> None:
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

    def _fail(self, episode: Episode, turn: Turn, failure: Failure) -> None:
        episode.trajectory.turns.append(turn)
        episode.fail(failure, self.environments.name)

    def _finish(self, episodes: Sequence[Episode]) -> None:
        """Asks for what the environments know only now that their episodes are over."""
        ended = [episode for episode in episodes if not episode.trajectory.failed]
        endings = self.environments.finish([episode.slot for episode in ended])
        for episode, ending in zip(ended, endings, strict=True):
            if isinstance(ending, Failure):
                episode.fail(ending, self.environments.name)
            elif ending is not None:
                episode.finish(ending)

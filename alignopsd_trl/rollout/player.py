"""Plays episodes together: render the prompts of all live episodes, sample for all at once, step, repeat.

One round asks each live episode for one turn. Every process plays the same number of rounds and asks for equally many
responses in each (`agree`), so that sampling may run collectives. A failing environment ends its own episode only.
Turns are counted here and nowhere else, so that a turn limit means the same on every benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignopsd_trl.environments.base import EnvironmentsDown, Failure, Projection
from alignopsd_trl.environments.batch import ValidatedBatch
from alignopsd_trl.prompts import Renderer
from alignopsd_trl.reading import Reader, reader_for
from alignopsd_trl.rollout.episode import Episode, blank_turn
from alignopsd_trl.rollout.prompting import Prompting, SkillSource, no_skills
from alignopsd_trl.rollout.sampler import Sampler
from alignopsd_trl.rollout.siblings import SiblingsDiffer, check_openings
from alignopsd_trl.turns import Seeds, Trajectory, Turn


@dataclass
class Player:
    """Plays episodes with a policy.

    Args:
        environments ([`ValidatedBatch`]):
            From `alignopsd_trl.environments.batch.open_batch`; as many slots as episodes are played at once, at least.
        renderer ([`Renderer`]):
            Makes token ids of views.
        sampler ([`Sampler`]):
            The policy.
        tokenizer ([`PreTrainedTokenizerBase`]):
            Decodes responses.
        end_ids (`Sequence[int]`):
            Tokens that end a response.
        skills ([`SkillSource`], *optional*, defaults to `no_skills`):
            Privileged text of a task.
        skills_in_rollout (`bool`, *optional*, defaults to `False`):
            The policy itself sees the skill (rows of the table that say so); else only `Turn.privileged_ids` holds it.
        max_turns (`int`, *optional*):
            Turns after which an episode ends; the environment's own number by default, and no more than that.
        agree (`Callable[[int], int]`, *optional*, defaults to `lambda number: number`):
            Maximum of a number over all processes.
        progress (`Callable[[int, int], None]`, *optional*, defaults to `lambda ended, turns: None`):
            Called with the numbers of episodes that ended and of turns that were played since the last call.
        reader ([`Reader`], *optional*):
            Finds thinking and actions in responses; by default as the environments say, between ``<think>`` tags.
        privileged (`bool`, *optional*, defaults to `True`):
            Turns hold the privileged prompt too (`Turn.privileged_ids`). Without it, prompts are cut as if they did.
        until_lost (`bool`, *optional*, defaults to `False`):
            An episode ends as at its turn limit once the environment says that the turns left can't win it
            (`Step.lost`): for who only asks who wins.
        privileged_siblings (`int`, *optional*, defaults to 0):
            The first so many episodes of each group are played with the skill in the prompt. What is trained on is
            the ordinary prompt, so the sampler's log-probs of these turns are dropped.
        teacher ([`Sampler`], *optional*):
            Plays them; by default ``sampler``.
    """

    environments: ValidatedBatch
    renderer: Renderer
    sampler: Sampler
    tokenizer: PreTrainedTokenizerBase
    end_ids: Sequence[int]
    skills: SkillSource = no_skills
    skills_in_rollout: bool = False
    max_turns: int | None = None
    agree: Callable[[int], int] = lambda number: number
    progress: Callable[[int, int], None] = lambda ended, turns: None
    reader: Reader | None = None
    privileged: bool = True
    until_lost: bool = False
    privileged_siblings: int = 0
    teacher: Sampler | None = None

    def __post_init__(self) -> None:
        self.reader = self.reader or reader_for(self.tokenizer, self.environments)
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
    ) -> list[Trajectory]:
        """One finished trajectory per dataset row.

        Args:
            rows: dataset rows; each is handed to ``reset(**row, seed=...)``, and ``dynamics_seed`` where it is asked
                for. A column of such a name goes first.
            seeds: of the episodes (`episode_seeds`).
            tasks: identity of each row's sibling group; rollouts are numbered inside it in order.
            prefixes: actions of each episode that are replayed before the policy takes over; their turns have neither
                prompt nor response.

        Raises:
            EnvironmentsDown: on all processes, if the environments of one are down.
            SiblingsDiffer: on all processes, if siblings open differently (`TextEnvironment.openings_may_differ`).
            ValueError: for prefixes of a conversation, which would have no responses.
        """
        if self.renderer.converses and any(prefixes):
            raise ValueError("actions alone make no conversation to walk on from; use history='window'")
        episodes = self._begin(rows, seeds, tasks)
        self._together(lambda: self._open(episodes))
        limit = self.max_turns or self.environments.max_turns
        self._together(lambda: self._replay(episodes, prefixes, limit))
        self.progress(sum(not episode.live for episode in episodes), 0)
        while True:
            live = [episode for episode in episodes if episode.live]
            turns = self._prompting.next_turns(live)
            live = [episode for episode in live if episode.live]
            width = self.agree(len(live))
            if width == 0:
                self.progress(sum(turn is None for turn in turns), 0)
                self._together(lambda: self._finish(episodes))
                return [episode.trajectory for episode in episodes]
            ready = [turn for turn in turns if turn is not None]
            self._respond(live, ready, width)
            self._together(lambda live=live, ready=ready: self._step(live, ready, limit))
            self.progress(len(turns) - sum(episode.live for episode in live), len(ready))

    def _together(self, act: Callable[[], None]) -> None:
        """Environments that can't be played with on one process end the play of all, in the same round."""
        problem: EnvironmentsDown | SiblingsDiffer | None = None
        try:
            act()
        except (EnvironmentsDown, SiblingsDiffer) as error:
            problem = error
        kind = self.agree({EnvironmentsDown: 1, SiblingsDiffer: 2}.get(type(problem), int(problem is not None)))
        if kind and problem is None:
            raise (EnvironmentsDown, SiblingsDiffer)[kind - 1]("another process met this; its own error says why")
        if problem is not None:
            raise problem

    def _begin(self, rows: Sequence[Mapping[str, Any]], seeds: Sequence[Seeds], tasks: Sequence[str]) -> list[Episode]:
        seen: dict[str, int] = {}
        episodes = []
        for slot, (row, task) in enumerate(zip(rows, tasks, strict=True)):
            seen[task] = seen.get(task, -1) + 1
            privileged = seen[task] < self.privileged_siblings
            trajectory = Trajectory(dict(row), task, f"{seen[task]:04d}", seeds[slot], privileged=privileged)
            episodes.append(Episode(slot, trajectory))
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
            else:
                row = (episode.trajectory.row,) if getattr(self.skills, "reads_row", False) else ()
                skill = self.skills(opening.task_text, opening.task_key, opening.data_source, *row)
                episode.start(opening, skill)

    def _replay(self, episodes: Sequence[Episode], prefixes: Sequence[Sequence[str]], limit: int) -> None:
        for place in range(max(map(len, prefixes), default=0)):
            pairs = zip(episodes, prefixes, strict=True)
            going = [(one, prefix[place]) for one, prefix in pairs if one.live and place < len(prefix)]
            turns = [blank_turn(place, "", [], [], False) for _ in going]
            for turn, (_, action) in zip(turns, going, strict=True):
                turn.action = action
            self._step([one for one, _ in going], turns, limit)

    def _respond(self, episodes: Sequence[Episode], turns: Sequence[Turn], width: int) -> None:
        """Samples a response for each turn; ``width`` is how many responses every process asks for in this round."""
        for sampler, rows, count in self._shares(episodes, width):
            self._sample(sampler, [episodes[row] for row in rows], [turns[row] for row in rows], count)

    def _shares(self, episodes: Sequence[Episode], width: int) -> list[tuple[Sampler, Sequence[int], int]]:
        """Who answers which rows, and how many responses every process asks of it."""
        if self.teacher is None:
            return [(self.sampler, range(len(episodes)), width)]
        rows: dict[bool, list[int]] = {False: [], True: []}
        for row, episode in enumerate(episodes):
            rows[episode.trajectory.privileged].append(row)
        shares = [(self.sampler, rows[False]), (self.teacher, rows[True])]
        return [(sampler, part, count) for sampler, part in shares if (count := self.agree(len(part)))]

    def _sample(self, sampler: Sampler, episodes: Sequence[Episode], turns: Sequence[Turn], width: int) -> None:
        filler = self.renderer.encode(["."]) * (width - len(turns)) if width > len(turns) else []
        pairs = list(zip(episodes, turns, strict=True))
        prompts = [turn.privileged_ids if one.trajectory.privileged else turn.prompt_ids for one, turn in pairs]
        responses, log_probs = sampler.respond(prompts + filler)
        texts = self.tokenizer.batch_decode(
            responses[: len(turns)], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        for row, (episode, turn) in enumerate(pairs):
            turn.response_ids, turn.response_text = list(responses[row]), texts[row]
            turn.truncated = not turn.response_ids or turn.response_ids[-1] not in self.end_ids
            kept = log_probs is not None and not episode.trajectory.privileged
            turn.sampling_log_probs = list(log_probs[row]) if kept else None
            self._project(episode, turn)

    def _project(self, episode: Episode, turn: Turn) -> None:
        tools = getattr(episode.context, "tools", ())
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

    def _step(self, episodes: Sequence[Episode], turns: Sequence[Turn], limit: int) -> None:
        live = [(episode, turn) for episode, turn in zip(episodes, turns, strict=True) if episode.live]
        answers = self.environments.step([episode.slot for episode, _ in live], [turn.action for _, turn in live])
        for (episode, turn), answer in zip(live, answers, strict=True):
            if isinstance(answer, Failure):
                self._fail(episode, turn, answer)
            else:
                episode.advance(turn, answer, limit, self.until_lost)

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

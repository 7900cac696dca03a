"""Plays the episodes of a run: sibling groups for a round, rows or a panel for an evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from accelerate.utils import gather_object
from transformers import PreTrainedTokenizerBase

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.batch import ValidatedBatch, open_batch
from alignopsd_trl.methods import Method
from alignopsd_trl.rollout.episode import SkillSource, episode_seeds, no_skills
from alignopsd_trl.rollout.monte_carlo.replays import Replays
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.rollout.reading import Reader, reader_for
from alignopsd_trl.rollout.sampler import AnySampler
from alignopsd_trl.runs.health import FailedShare, RunStopped, Tally
from alignopsd_trl.runs.state import last_good
from alignopsd_trl.sampling.backend import HandOver
from alignopsd_trl.skills.turn_texts import reserved_tokens
from alignopsd_trl.training.console import show_note
from alignopsd_trl.turns import Trajectory


class ToPlay(NamedTuple):
    """A round to play.

    Attributes:
        rows: rows of the dataset; those of a sibling group are adjacent.
        update, updates: numbers of updates before the round and of the whole run.
        privileged, teacher: number of siblings of each group that are played with the skill in the prompt, and their
            sampler, with ``hand_over`` as in [`Player`].
    """

    rows: Sequence[Mapping[str, Any]]
    update: int
    updates: int
    sampler: AnySampler
    method: Method
    privileged: int = 0
    teacher: AnySampler | None = None
    hand_over: HandOver | None = None


@dataclass(eq=False)
class Rollouts:
    """Plays episodes on environments, which it opens at the first need.

    Args:
        failed: share of failed episodes that ends a run.
        save: writes a checkpoint of an update, for a run that must end before its next one.
        beyond: returns a text about the run's time after the current rollouts.
    """

    factory: Any
    config: AlignOPSDConfig
    tokenizer: PreTrainedTokenizerBase
    end_ids: Sequence[int]
    processes: ProcessGroup
    skills: SkillSource
    failed: FailedShare
    save: Callable[[int], None]
    beyond: Callable[[], str]

    def __post_init__(self) -> None:
        self.options = PlayOptions.of(self.config)
        self.slots = self.config.episodes_at_once
        self._batch: ValidatedBatch | None = None

    @property
    def environments(self) -> ValidatedBatch:
        if self._batch is None:
            self._batch = open_batch(self.factory, self.slots, self.config.environment_time_limit)
            self._totals = self._batch.metrics()  # what it has counted before belongs to no round
            self._closer = weakref.finalize(self, self._batch.close)
        return self._batch

    @cached_property
    def reader(self) -> Reader:
        """The reader that finds reasoning traces and actions in responses, in the environments' format."""
        return reader_for(self.tokenizer, self.environments, self.options)

    def close(self) -> None:
        """Closes the environments; the next call that plays opens new ones."""
        if self._batch is not None:
            self._closer()
            self._batch = None

    def player(
        self,
        sampler: AnySampler,
        skilled: bool,
        skills_in_rollout: bool,
        progress: Callable[[int, int], None] = lambda ended, turns: None,
        reserved: int = 0,
    ) -> Player:
        """Makes a player of these environments: ``skilled``, turns hold privileged prompts; ``skills_in_rollout``, the
        policy itself sees the skill; ``reserved`` as in [`Renderer`]."""
        return Player.of(
            self.environments,
            sampler,
            self.tokenizer,
            self.end_ids,
            self.options,
            reserved,
            skills=self.skills if skilled else no_skills,
            skills_in_rollout=skills_in_rollout,
            agree=self.processes.agree,
            each=self.processes.each,
            progress=progress,
        )

    def training_player(self, sampler: AnySampler, method: Method) -> Player:
        later = method.needs_teacher and self.config.privileged is not None
        reads = method.needs_teacher and not later
        skilled = reads or method.skills_in_rollout or self.config.privileged_siblings > 0
        reserved = reserved_tokens(self.config.skill_budget) if later else 0
        player = self.player(sampler, skilled, method.skills_in_rollout, reserved=reserved)
        player.sampling_seed = self.config.seed
        player.settings = {"temperature": self.config.temperature, "top_p": self.config.top_p}
        return player

    def replays(self, sampler: AnySampler, method: Method, number: int) -> Replays:
        seed = 1_000_003 * self.processes.process + number
        return Replays(self.training_player(sampler, method), self.slots, seed)

    def play(self, asked: ToPlay) -> list[Trajectory]:
        """Plays a round.

        Raises:
            EnvironmentsDown, SamplerDown: on all processes, if the environments or the sampler of one are down.
            RunStopped: if too many episodes failed; a checkpoint is saved first.
        """
        trajectories = self._played(asked)
        self._check(trajectories, asked.update)
        return trajectories

    def _played(self, asked: ToPlay) -> list[Trajectory]:
        self._added()  # drops the counts of evaluations since the last round
        return self.play_groups(asked)

    def take_counters(self) -> dict[str, float]:
        """Returns the last round's additions to the environments' counters."""
        return self._added()

    def _added(self) -> dict[str, float]:
        """Returns the increase of the environments' totals (``metrics()``) since the last call, as
        ``environment/<name>``; empty for a batch without counters."""
        now = self.environments.metrics()
        before, self._totals = self._totals, now
        return {f"environment/{name}": value - before.get(name, 0.0) for name, value in now.items()}

    def play_groups(self, asked: ToPlay) -> list[Trajectory]:
        """Plays episodes of whole sibling groups: `num_generations` equal rows side by side are one group."""
        siblings = self.config.num_generations
        tasks = group_names([row["task_id"] for row in asked.rows], siblings)
        seeds = [episode_seeds(row["task_id"], asked.update, n % siblings) for n, row in enumerate(asked.rows)]
        with self._bar_of(asked) as progress:
            return self._player_of(asked, progress).play(asked.rows, seeds, tasks)

    def _player_of(self, asked: ToPlay, progress: Bar) -> Player:
        player = self.training_player(asked.sampler, asked.method)
        player.privileged_siblings, player.teacher, player.update = asked.privileged, asked.teacher, asked.update
        player.hand_over, player.progress = asked.hand_over, progress
        return player

    def _bar_of(self, asked: ToPlay) -> Bar:
        return self.bar(len(asked.rows), f"update {asked.update + 1}/{asked.updates}: rollout")

    def bar(self, total: int, title: str) -> Bar:
        """Shows the counts of played turns and ended episodes, on the first process of a machine."""
        hidden = self.config.disable_tqdm or not self.processes.is_local_main
        turns = self.config.max_turns or self.environments.max_turns
        return Bar(total, title, hidden, turns, self.beyond)

    def _check(self, trajectories: Sequence[Trajectory], update: int) -> None:
        tally = Tally.total(gather_object([Tally.of(trajectories)]))
        if tally.failed and self.processes.process == 0:
            show_note(f"{tally.failed} of {tally.episodes} episodes failed; the first: {tally.message}")
        problem = self.failed.problem(tally)
        if problem:
            self.save(update)
            raise RunStopped(f"update {update + 1}: {problem}; {last_good(self.config.output_dir)}")


def group_names(task_ids: Sequence[str], siblings: int) -> list[str]:
    """Returns the name of each row's sibling group: its task, with a number where a task has several groups.

    Raises:
        RuntimeError: if rows of a group have different tasks.
    """
    seen: dict[str, int] = {}
    names: list[str] = []
    for first in range(0, len(task_ids), siblings):
        identity = task_ids[first]
        if any(other != identity for other in task_ids[first : first + siblings]):
            raise RuntimeError("a sibling group straddles processes; this is a bug, please report it")
        count = seen[identity] = seen.get(identity, 0) + 1
        names += [identity if count == 1 else f"{identity}#{count}"] * siblings
    return names

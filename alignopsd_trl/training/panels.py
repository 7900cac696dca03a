"""Plays evaluations with the current policy: panels (evaluation sets), split over all processes, and dataset rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import BEST, VARIANCE
from alignopsd_trl.environments.panel import TaskPanel, trained_too
from alignopsd_trl.records import turn_records
from alignopsd_trl.results.play import check_played, play_panel
from alignopsd_trl.results.summary import EvaluationResult, Outcome, summarise
from alignopsd_trl.rollout.metrics import means, rollout_sums
from alignopsd_trl.runs.health import Tally
from alignopsd_trl.sampling.backend import Samplers
from alignopsd_trl.training.console import show_note
from alignopsd_trl.training.phases import Seconds
from alignopsd_trl.training.rewards import RewardError, Rewards
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy


@dataclass(eq=False)
class Panels:
    """Plays a trainer's evaluations.

    Args:
        seconds: wall seconds of the run, to which evaluations add theirs.
    """

    policy: TrainedPolicy
    samplers: Samplers
    rollouts: Rollouts
    rewards: Rewards
    processes: ProcessGroup
    seconds: Seconds
    trained: Any

    def __post_init__(self) -> None:
        self._told: set[str | None] = set()

    def evaluate(self, panel: TaskPanel, skills: bool, temperature: float, seed: int) -> EvaluationResult:
        """Plays a panel and returns the result over all processes, equal on each.

        Raises:
            RunStopped: if no episode could be played.
            RewardError: for a reward that is no finite number.
        """
        played = self._play(panel.rows, f"panel {panel.name}", skills, temperature, seed)
        outcomes = gather_object([Outcome.of(one) for one in played])
        said = gather_object([one | {"prompt": None} if one["turn"] else one for one in turn_records(played, step=0)])
        result = summarise(panel, outcomes, skills=skills, temperature=temperature, seed=seed)
        return replace(result, records=tuple(said))

    def metrics(
        self, rows: Sequence[Mapping[str, Any]], name: str, skills: bool, temperature: float, variance: bool = False
    ) -> dict[str, float]:
        """Plays rows as `evaluate` does and returns the metrics of their episodes, equal on each process.

        The metric `BEST`, for choosing a checkpoint, is the success or, where that is unknown, the score. It is absent
        where both are: reward models score no evaluation. `VARIANCE`, on request, is that of `BEST` over episodes.
        """
        played = self._play(rows, name, skills, temperature, seed=0)
        found = means(gather_object([rollout_sums(played)]))
        known = [one for one in ("episodes/success", "episodes/score") if one in found]
        if not known:
            return found
        best = {BEST: found[known[0]]}
        if variance:
            values = gather_object([one.won if "success" in known[0] else one.score for one in played])
            best[VARIANCE] = fmean((value - best[BEST]) ** 2 for value in values)
        return best | found

    def warn_of_trained(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Prints once if tasks of an evaluation are trained on."""
        warning = trained_too(self.trained, rows, name)
        if warning and warning not in self._told and self.processes.process == 0:
            show_note(warning)
        self._told.add(warning)

    def _play(
        self, rows: Sequence[Mapping[str, Any]], name: str, skills: bool, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Plays this process's share of the rows. A collective."""
        self.warn_of_trained(name, rows)
        started, process, processes = time.perf_counter(), self.processes.process, self.processes.processes
        own, share = len(rows[process::processes]), (seed, process, processes)
        try:
            with self.samplers.evaluation(temperature) as sampler, self.rollouts.bar(own, name) as progress:
                player = self.rollouts.player(sampler, skills, skills, progress)
                played = play_panel(player, self.policy.model, rows, self.rollouts.slots, *share, self.rewards.score)
        finally:
            taken = self.rewards.check.take()  # none of it is training's
        found = self.processes.each((Tally.of(played), *taken))
        self.seconds.evaluated(time.perf_counter() - started)
        check_played(Tally.total([one for one, _, _ in found]), name)
        if problems := [problem for _, problem, _ in found if problem]:
            raise RewardError(f"{name}: {problems[0]}")
        silent = sum((Counter(counts) for _, _, counts in found), Counter())
        if silent and process == 0:
            told = ", ".join(f"{function!r} for {count}" for function, count in silent.items())
            show_note(f"{name}: None was returned by reward function {told} of {len(rows)} episodes")
        return played

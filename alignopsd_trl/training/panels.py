"""Plays evaluations with the current policy: panels (evaluation sets), split over all processes, and dataset rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.evaluation import EvaluationResult, Outcome, evaluating, play_panel, summarise
from alignopsd_trl.records import turn_records
from alignopsd_trl.rollout import AnySampler, episode_seed, episode_seeds, siblings_before
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.training.phases import Seconds
from alignopsd_trl.training.rewards import Rewards
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.training.round import Samplers
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat.policy import TrainedPolicy


@dataclass(eq=False)
class Panels:
    """Plays a trainer's evaluations.

    Args:
        policy: the policy to evaluate.
        samplers: make the policy's sampler.
        seconds: wall seconds of the run, to which evaluations add theirs.
    """

    policy: TrainedPolicy
    samplers: Samplers
    rollouts: Rollouts
    rewards: Rewards
    processes: ProcessGroup
    seconds: Seconds

    def evaluate(self, panel: TaskPanel, skills: bool, temperature: float, seed: int) -> EvaluationResult:
        """Plays a panel and returns the result over all processes, equal on each.

        Raises:
            RunStopped: if no episode could be played.
        """
        started, process, processes = time.perf_counter(), self.processes.process, self.processes.processes
        own = len(panel.rows[process::processes])
        with (
            self._sampler(temperature) as sampler,
            self.rollouts.bar(own, f"panel {panel.name}", sampler) as progress,
        ):
            played = play_panel(
                self.rollouts.player(sampler, skills, skills, progress),
                self.policy.model,
                panel,
                slots=self.rollouts.slots,
                seed=seed,
                process=process,
                processes=processes,
                finished=self.rewards.score,
            )
        outcomes = gather_object([Outcome.of(one) for one in played])
        said = gather_object([one | {"prompt": None} if one["turn"] else one for one in turn_records(played, step=0)])
        tally = Tally.total(gather_object([Tally.of(played)]))
        self.seconds.evaluated(time.perf_counter() - started)
        if tally.usable == 0:
            raise RunStopped(f"panel {panel.name}: no episode could be played. The first reason: {tally.message}")
        result = summarise(panel, outcomes, skills=skills, temperature=temperature, seed=seed)
        return replace(result, records=tuple(said))

    def play_rows(self, rows: Sequence[Mapping[str, Any]], skills: bool, temperature: float) -> list[Trajectory]:
        """Plays an episode of each row. The random state of training stays unchanged, and a task's seeds do not depend
        on the batches."""
        tasks = [row["task_id"] for row in rows]
        seed = episode_seed(" ".join(tasks), 0, self.processes.process)
        with self._sampler(temperature) as sampler, evaluating(self.policy.model, seed):
            places = siblings_before(gather_object([tasks]), self.processes.process)
            seeds = [episode_seeds(task, 0, place) for task, place in zip(tasks, places, strict=True)]
            trajectories = self.rollouts.player(sampler, skills, skills).play(rows, seeds, tasks)
            self.rewards.score(trajectories)
        return trajectories

    @contextlib.contextmanager
    def _sampler(self, temperature: float) -> Generator[AnySampler]:
        """Waits for rounds that are played ahead, then opens the sampler of an evaluation."""
        self.rollouts.settle()
        with self.samplers.evaluation(temperature) as sampler:
            yield sampler

"""Plays panels with the policy as it is now, spread over all processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import gather_object

from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.evaluation import EvaluationResult, Outcome, play_panel, summarise
from alignopsd_trl.rollout import AnySampler
from alignopsd_trl.runs.health import RunStopped, Tally
from alignopsd_trl.training.checkpoints import Seconds
from alignopsd_trl.training.rewards import Rewards
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.turns import Trajectory


@dataclass(eq=False)
class Panels:
    """What a trainer evaluates panels with.

    Args:
        model: the policy as it is now.
        sampling: gives what samples from it at a temperature, for as long as it is held.
        seconds: of the run, which evaluations are added to.
    """

    model: Callable[[], torch.nn.Module]
    sampling: Callable[[float], AbstractContextManager[AnySampler]]
    rollouts: Rollouts
    rewards: Rewards
    processes: ProcessGroup
    seconds: Seconds

    def evaluate(self, panel: TaskPanel, skills: bool, temperature: float, seed: int, state: Any) -> EvaluationResult:
        """The result over all processes, the same on each.

        Args:
            state: the trainer's, as reward functions get it.

        Raises:
            RunStopped: if no episode could be played.
        """
        started = time.perf_counter()
        played = self._play(panel, skills, temperature, seed, state)
        outcomes = gather_object([Outcome.of(one) for one in played])
        tally = Tally.total(gather_object([Tally.of(played)]))
        self.seconds.evaluated(time.perf_counter() - started)
        if tally.usable == 0:
            raise RunStopped(f"panel {panel.name}: no episode could be played. The first reason: {tally.message}")
        return summarise(panel, outcomes, skills=skills, temperature=temperature, seed=seed)

    def _play(self, panel: TaskPanel, skills: bool, temperature: float, seed: int, state: Any) -> list[Trajectory]:
        """This process's share of a panel's episodes."""
        process, processes = self.processes.process, self.processes.processes
        own = len(panel.rows[process::processes])
        with (
            self.sampling(temperature) as sampler,
            self.rollouts.bar(own, f"panel {panel.name}", sampler) as progress,
        ):
            return play_panel(
                self.rollouts.player(sampler, skills, skills, progress),
                self.model(),
                panel,
                slots=self.rollouts.slots,
                seed=seed,
                process=process,
                processes=processes,
                finished=partial(self.rewards.score, state=state),
            )

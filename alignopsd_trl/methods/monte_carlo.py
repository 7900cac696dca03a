"""Monte Carlo: each turn's advantage from rollouts of the policy, the expensive upper bound of every table."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from alignopsd_trl.common.options import PositiveCount
from alignopsd_trl.methods.advantages import EPSILON, segment_sum
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class MonteCarloOptions:
    walks: PositiveCount = field(
        default=8, metadata={"help": "Monte Carlo rollouts a state on average, in groups whose rewards differ."}
    )


@register
class MonteCarlo(Baseline):
    """A_MC = V(next state) - V(state) on every token of a turn, V the mean reward of Monte Carlo rollouts.

    No skill, no teacher, no encoder; the environment must be deterministic (a function of row, seed and actions), and
    its own reward must be the only one. Like GRPO's advantage A_MC is divided by the deviation of its group's rewards
    (``scale_rewards``), so that both are estimates of one gradient on one scale. Costs some 20 to 50 times the rollout.

    Source: VinePPO (Kazemnejad et al., ICML 2025), whose steps are lines of reasoning. Here they are turns, rollouts
    are pooled over siblings, and values are backed up. Beyond the paper's table.
    """

    name = "monte_carlo"
    Options = MonteCarloOptions
    needs_turn_advantages = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        if batch.turn_advantages is None:
            raise ValueError(
                "monte_carlo needs batch.turn_advantages: measure them by rollouts from the batch's states"
            )
        found = outcome(batch, self.config)
        advantage = torch.nan_to_num(batch.turn_advantages.double())
        if self.config.scale_rewards == "group":
            advantage = advantage / (_deviation(batch) + EPSILON)
        metrics = (
            {"credit/measured_share": float(batch.turn_advantages.isfinite().double().mean())} if len(batch) else {}
        )
        return credit_of(batch, found, advantage, metrics, {"monte_carlo": batch.turn_advantages})


def _deviation(batch: TurnBatch) -> torch.Tensor:
    """Returns the deviation of the rewards in each turn's group, ``(M,)``, each rollout counted once."""
    groups, reward = batch.groups, batch.reward.double()
    once, task, tasks = (groups.position == 0).double(), groups.task, groups.tasks
    size = segment_sum(once, task, tasks)
    mean = segment_sum(reward * once, task, tasks) / size.clamp_min(1)
    squares = segment_sum((reward - mean[task]).square() * once, task, tasks)
    return (squares / (size - 1).clamp_min(1)).sqrt()[task]

"""Monte Carlo: each turn's advantage from rollouts of the policy, the expensive upper bound of every table."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from alignopsd_trl.common.options import PositiveCount, option
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import EPSILON, deviation, normalise, outcome
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class MonteCarloOptions:
    walks: PositiveCount = option(8, "Monte Carlo rollouts a state on average, in groups whose rewards differ.")


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
            groups, once = batch.groups, batch.groups.position == 0
            centred = normalise(batch.reward.double(), groups.task, groups.tasks, once, scale=False)
            advantage = advantage / (deviation(centred, groups.task, groups.tasks, once.double()) + EPSILON)
        metrics = (
            {"credit/measured_share": float(batch.turn_advantages.isfinite().double().mean())} if len(batch) else {}
        )
        return credit_of(batch, found, advantage, metrics, {"monte_carlo": batch.turn_advantages})

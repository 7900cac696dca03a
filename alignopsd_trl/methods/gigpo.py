"""GiGPO: step credit without a teacher, from turns of siblings that start in the same state."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import torch

from alignopsd_trl.methods.advantages import number_rows
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import discounted_returns, row_advantage
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class GiGPOOptions:
    gamma: float = field(default=0.95, metadata={"help": "Discount of returns."})
    step_weight: float = field(default=1.0, metadata={"help": "omega: weight of the step advantage."})
    scale_steps: bool = field(
        default=False, metadata={"help": "Divide step advantages by their group's deviation (off by default there)."}
    )


@register
class GiGPO(Baseline):
    """A + omega A^S: discounted returns compared among the turns that start from the same observation.

    G_k = gamma^(K - 1 - k) R for the rollout's terminal reward R; A^S is G less the mean over its state group (same
    task, equal observation before the turn), 0 for a state met once. The first turns of a task form one group. No
    skill, no teacher, no further forward pass; all of it is detached.

    Source: GiGPO (arXiv 2505.10978) and its published code, exact state matching. Its statistics of A are over turn
    rows and its default does not divide by the deviation: set ``group_statistics="turn"``, ``scale_rewards="none"`` for
    that. Beyond the paper's table. Confidence: high.
    """

    name = "gigpo"
    Options = GiGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        last = torch.ones_like(batch.rollout, dtype=torch.bool)
        last[:-1] = batch.rollout[1:] != batch.rollout[:-1]
        reward = torch.where(last, batch.reward.double(), 0.0)
        returns = discounted_returns(reward, batch.rollout, batch.turn, options.gamma)
        group, groups = number_rows(batch.task, start_states(batch))
        steps = row_advantage(returns, group, scale=options.scale_steps)
        metrics = {}
        if len(batch):
            shared = torch.bincount(group, minlength=groups)[group] > 1
            metrics["credit/shared_state_share"] = float(shared.double().mean())
        shaped = found.advantage + options.step_weight * steps
        return credit_of(batch, found, shaped, metrics, {"step_advantage": steps, "state_group": group})


def start_states(batch: TurnBatch) -> torch.Tensor:
    """``(M,)`` int64 labels of the observation that each turn was chosen on; 0 for first turns."""
    rollouts = batch.rollout.tolist()
    labels = [
        zlib.crc32(batch.turns[row - 1].observation.encode()) + 1 if row and rollouts[row - 1] == rollouts[row] else 0
        for row in range(len(batch))
    ]
    return torch.tensor(labels, dtype=torch.int64, device=batch.task.device)

"""GiGPO: step credit without a teacher, from turns of siblings that start in the same state."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from alignopsd_trl.common.options import Size
from alignopsd_trl.methods.advantages import normalise
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, step_credit
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import discounted_returns
from alignopsd_trl.methods.registry import register
from alignopsd_trl.methods.state_credit import state_labels, turn_rewards
from alignopsd_trl.turns import TurnBatch, number_rows


@dataclass(frozen=True)
class GiGPOOptions:
    gamma: Size = field(default=0.95, metadata={"help": "Discount of returns."})
    step_weight: Size = field(default=1.0, metadata={"help": "omega: weight of the step advantage."})
    scale_steps: bool = field(
        default=False, metadata={"help": "Divide step advantages by their group's deviation (off by default there)."}
    )


@register
class GiGPO(Baseline):
    """A + omega A^S: discounted returns compared among the turns that start from the same observation.

    G_k = sum of gamma^(j - k) r_j over the turns j >= k of the rollout (Eq. 5), r_j the reward of turn j
    (`TurnBatch.turn_reward`); A^S is G less the mean over its state group (same task, equal observation before the
    turn), 0 for a state met once. The first turns of a task form one group. No skill, no teacher, no further forward
    pass; all of it is detached.

    Source: GiGPO (arXiv 2505.10978) and its published code, exact state matching. Its statistics of A are over turn
    rows and its default does not divide by the deviation: set ``group_statistics="turn"``, ``scale_rewards="none"`` for
    that. Beyond the paper's table. Confidence: high.
    """

    name = "gigpo"
    Options = GiGPOOptions
    options: GiGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        returns = discounted_returns(turn_rewards(batch), batch.groups, options.gamma)
        state = number_rows(batch.groups.task, state_labels(batch)[0])
        steps = normalise(returns, state, len(torch.bincount(state)), scale=options.scale_steps)
        shaped = found.advantage + options.step_weight * steps
        return step_credit(batch, found, shaped, steps, state)

"""HGPO: step credit without a teacher, from turns that share a state and more or less of the history before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from alignopsd_trl.common.options import Count, Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, step_credit
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import discounted_returns
from alignopsd_trl.methods.registry import register
from alignopsd_trl.methods.state_credit import hierarchical_advantage, history_groups, state_labels, turn_rewards
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class HGPOOptions:
    gamma: Size = field(default=0.95, metadata={"help": "Discount of returns."})
    history: Count = field(default=2, metadata={"help": "K: states before the current one that a group may share."})
    depth_exponent: Size = field(
        default=1.0,
        metadata={"help": "alpha: level k weighs (k + 1)^alpha, so that longer shared history counts more."},
    )


@register
class HGPO(Baseline):
    """A^H = sum over k of w_k A_k: discounted returns compared at K + 1 depths of shared history.

    The group of depth k holds the task's turns with the same state and the same k states before it; A_k is the return
    less the group's mean, over its deviation (``scale_rewards="none"``, the published default: not divided).
    w_k = (k + 1)^alpha over their sum. A^H replaces the outcome advantage. No skill, no teacher, no further forward
    pass; all of it is detached.

    Source: HGPO (arXiv 2602.22817, Eq. 3 to 7) and its published code. A group whose returns are all equal is left out
    and the other weights add up to 1, as in both; so is a depth for which a turn has not enough history, as in the
    code. Departure: the code leaves out single turns whose A_k is 0, we leave out whole groups. Confidence: high.
    """

    name = "hgpo"
    Options = HGPOOptions
    options: HGPOOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        returns = discounted_returns(turn_rewards(batch), batch.groups, options.gamma)
        state, _ = state_labels(batch)
        levels = history_groups(batch.groups, state, options.history)
        steps = hierarchical_advantage(
            returns, levels, options.depth_exponent, scale=self.config.scale_rewards == "group"
        )
        return step_credit(batch, found, steps, steps, levels[0])

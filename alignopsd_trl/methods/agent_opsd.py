"""AgentOPSD: turn weights from a belief that the teacher's gaps update turn by turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from alignopsd_trl.common.options import Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of, identity_gap, token_mean
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import belief_advantage, belief_recursion, success_rate
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class AgentOPSDOptions:
    mode: Literal["signed", "telescoping"] = field(
        default="signed",
        metadata={
            "help": "'signed': weights from the oriented belief steps (the paper's form). 'telescoping': the outcome "
            "less the prior, shared out in proportion to the steps.",
        },
    )
    mixing: Size = field(default=0.5, metadata={"help": "lambda (0.5 in the paper)."})
    band: Size = field(default=0.2, metadata={"help": "b: weights stay in [1 - b, 1 + b]."})
    gamma: Size = field(default=0.95, metadata={"help": "Decay of earlier evidence."})


@register
class AgentOPSD(Baseline):
    """A ((1 - lambda) + lambda w_k) with w_k from the steps of a recursive belief; no auxiliary loss, no encoder.

    e_k = sum of the turn's gaps, c_k = gamma c_{k-1} + e_k, B_k = sigmoid(logit(B_0) + c_k) with B_0 the group's
    success rate in [1e-4, 1 - 1e-4]; w_k = clip(1 + b z(sgn(A) (B_k - B_{k-1})), 1 - b, 1 + b), z within the rollout.
    Gaps are summed, not averaged: long turns saturate the belief. A rollout's success is its terminal reward, clipped
    to [0, 1].

    Contexts: rollout, loss and evaluation without skill, teacher with it. Everything is detached. Source: AgentOPSD
    (arXiv 2608.05987) and its published code. Beyond the paper's table. Confidence: high for ``mode="signed"``.
    """

    name = "agent_opsd"
    Options = AgentOPSDOptions
    needs_student_log_probs = True
    needs_teacher = True

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.weighs_outcome = self.options.mode == "signed"  # else outcome minus clipped prior is never exactly 0

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        gap, success = identity_gap(batch, teacher).double(), batch.reward.double().clamp(0, 1)
        prior = success_rate(success, batch.groups)
        belief, steps = belief_recursion(gap.sum(-1), prior, batch.groups, options.gamma)
        weight, shaped = belief_advantage(
            options.mode, found.advantage, steps, success, prior, batch.groups, options.mixing, options.band
        )
        metrics = token_mean(batch, "teacher/gap", gap)
        return credit_of(batch, found, shaped, metrics, {"belief": belief, "weight": weight}, gap)

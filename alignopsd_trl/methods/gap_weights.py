"""RLSD, StepOPSD and AgentOPSD: GRPO whose advantage is weighted with the teacher's gaps.

The gaps are those of the rollout snapshot, so that weights are fixed for the batch, and everything is detached.
Contexts: rollout, loss and evaluation without skill, teacher with it. No auxiliary loss, no encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from alignopsd_trl.common.options import Count, Size, option
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.baseline import Baseline, credit_of, identity_gap, token_mean
from alignopsd_trl.methods.grpo import OutcomeAdvantage, outcome
from alignopsd_trl.methods.objectives import (
    belief_advantage,
    belief_recursion,
    bounded_weight,
    equalise_steps,
    mix,
    mixing_weight,
    rlsd_weight,
    success_rate,
    turn_mean,
)
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


class GapWeights(Baseline):
    """What the three need."""

    needs_student_log_probs = True
    needs_teacher = True
    weighs_outcome = True


def _token_credit(
    batch: TurnBatch,
    found: OutcomeAdvantage,
    gap: torch.Tensor,
    weight: torch.Tensor,
    mixing: float,
    shaped: torch.Tensor,
) -> Credit:
    """Makes the credit of ``shaped`` advantages whose tokens have weights, ``(M, L)`` each."""
    metrics = {"credit/mixing": mixing} | token_mean(batch, "teacher/gap", gap)
    metrics |= token_mean(batch, "credit/token_weight", weight)
    trace = {"identity_gap": turn_mean(gap, batch.policy_mask), "weight": turn_mean(weight, batch.policy_mask)}
    return credit_of(batch, found, shaped, metrics, trace, gap)


@dataclass(frozen=True)
class RLSDOptions:
    mixing: Size = option(0.5, "lambda in the first round (0.5 in all published figures).")
    band: Size = option(0.2, "eps_w: weights stay in [1 - band, 1 + band].")
    decay_steps: Count = option(
        100,
        "Rounds over which lambda falls to 0: 100 in the launchers of the published table, 60 in the "
        "authors' own code, 0 (constant) in the SDAR paper's table.",
    )
    warmup_steps: Count = option(0, "Rounds over which lambda rises before it falls (authors' code: optional).")
    negative_only: bool = option(False, "Reweight failed rollouts only (an option of the authors' code).")


@register
class RLSD(GapWeights):
    """Token advantages A ((1 - lambda) + lambda w), w = clip(exp(sgn(A) delta), 0.8, 1.2), delta the identity gap.

    The sign of A is kept and |A_hat / A - 1| <= lambda * band. The penalty on invalid actions is added after weighting,
    as for every method here. The authors' older teacher snapshot (every 20 updates) is left out.

    Source: RLSD (arXiv 2604.03128) and SDAR's release, which agree. Confidence: high.
    """

    name = "rlsd"
    Options = RLSDOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        gap = identity_gap(batch, teacher).double()
        weight = rlsd_weight(found.advantage, gap, options.band, options.negative_only)
        mixing = mixing_weight(step + 1, options.mixing, options.decay_steps, options.warmup_steps)
        return _token_credit(batch, found, gap, weight, mixing, mix(found.advantage, weight, mixing))


@dataclass(frozen=True)
class StepOPSDOptions:
    aggregate: Literal["token", "turn"] = option(
        "token",
        "'token': weights per token, then equal steps (the first author's code). 'turn': one weight a "
        "turn from its mean gap (AgentOPSD's code, mode 'tether', there with mixing 0.5). Which of the two the "
        "published row ran is unknown.",
    )
    shape: Literal["sigmoid", "exp"] = option("sigmoid", "f of aggregate='token': 2 sigmoid (default) or exp.")
    band: Size = option(0.2, "alpha: weights stay in [1 - band, 1 + band].")
    mixing: Size = option(0.2, "lambda in the first round (0.2 in the paper, 0.05 to 0.5 in its scripts).")
    decay_steps: Count = option(50, "Rounds over which lambda falls to 0; 0: constant.")
    equal_steps: bool = option(True, "Rescale turns toward equal mean |advantage| (aggregate='token').")
    step_ratio: Size = option(2.0, "The rescaling factor stays in [1 / step_ratio, step_ratio].")


@register
class StepOPSD(GapWeights):
    """Token weights from the teacher's gap, rescaled so that the steps of a rollout get equal credit.

    ``aggregate="token"``: w = clip(2 sigmoid(sgn(A) delta), 1 - alpha, 1 + alpha), A' = A ((1 - lambda) + lambda w),
    then each turn's A' is rescaled toward the mean |A'| of its rollout's turns, by a factor in [1/2, 2], which does not
    conserve their sum. ``aggregate="turn"``: w = clip(exp(sgn(A) mean delta), 0.8, 1.2) for the turn.

    All methods share one bank here; the original appends a successful sibling. A step is a turn with all its response
    tokens; the original restricts the gap to the action text on ALFWorld and refreshes its teacher every 10 updates.

    Source: the first author's experiments for StepOPSD (arXiv 2605.27140). Confidence: formula high; that the
    published row used it, low.
    """

    name = "step_opsd"
    Options = StepOPSDOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found, mask = self.options, outcome(batch, self.config), batch.policy_mask
        gap = identity_gap(batch, teacher).double()
        mixing = mixing_weight(step + 1, options.mixing, options.decay_steps)
        if options.aggregate == "turn":
            weight = bounded_weight(found.advantage, turn_mean(gap, mask), options.band)[:, None].expand_as(gap)
        else:
            weight = bounded_weight(found.advantage, gap, options.band, options.shape)
        shaped = mix(found.advantage, weight, mixing)
        if options.aggregate == "token" and options.equal_steps:
            shaped = equalise_steps(shaped, mask, batch.groups, options.step_ratio)
        return _token_credit(batch, found, gap, weight, mixing, shaped)


@dataclass(frozen=True)
class AgentOPSDOptions:
    mode: Literal["signed", "telescoping"] = option(
        "signed",
        "'signed': weights from the oriented belief steps (the paper's form). 'telescoping': the outcome "
        "less the prior, shared out in proportion to the steps.",
    )
    mixing: Size = option(0.5, "lambda (0.5 in the paper).")
    band: Size = option(0.2, "b: weights stay in [1 - b, 1 + b].")
    gamma: Size = option(0.95, "Decay of earlier evidence.")


@register
class AgentOPSD(GapWeights):
    """A ((1 - lambda) + lambda w_k) with w_k from a belief that the teacher's gaps update turn by turn.

    e_k = sum of the turn's gaps, c_k = gamma c_{k-1} + e_k, B_k = sigmoid(logit(B_0) + c_k) with B_0 the group's
    success rate in [1e-4, 1 - 1e-4]; w_k = clip(1 + b z(sgn(A) (B_k - B_{k-1})), 1 - b, 1 + b), z within the rollout.
    Gaps are summed, not averaged: long turns saturate the belief. A rollout's success is its terminal reward, clipped
    to [0, 1].

    Source: AgentOPSD (arXiv 2608.05987) and its published code. Beyond the paper's table. Confidence: high for
    ``mode="signed"``.
    """

    name = "agent_opsd"
    Options = AgentOPSDOptions

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

"""StepOPSD: token weights from the teacher's gap, rescaled so that the steps of a rollout get equal credit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from alignopsd_trl.common.options import Count, Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of, identity_gap, token_mean
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import bounded_weight, equalise_steps, mix, mixing_weight, turn_mean
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class StepOPSDOptions:
    aggregate: Literal["token", "turn"] = field(
        default="token",
        metadata={
            "help": "'token': weights per token, then equal steps (the first author's code). 'turn': one weight a "
            "turn from its mean gap (AgentOPSD's code, mode 'tether', there with mixing 0.5). Which of the two the "
            "published row ran is unknown.",
        },
    )
    shape: Literal["sigmoid", "exp"] = field(
        default="sigmoid",
        metadata={"help": "f of aggregate='token': 2 sigmoid (default) or exp."},
    )
    band: Size = field(default=0.2, metadata={"help": "alpha: weights stay in [1 - band, 1 + band]."})
    mixing: Size = field(
        default=0.2, metadata={"help": "lambda at the first update (0.2 in the paper, 0.05 to 0.5 in its scripts)."}
    )
    decay_steps: Count = field(default=50, metadata={"help": "Updates over which lambda falls to 0; 0: constant."})
    equal_steps: bool = field(
        default=True, metadata={"help": "Rescale turns toward equal mean |advantage| (aggregate='token')."}
    )
    step_ratio: Size = field(
        default=2.0, metadata={"help": "The rescaling factor stays in [1 / step_ratio, step_ratio]."}
    )


@register
class StepOPSD(Baseline):
    """Step-normalised token advantages; no auxiliary loss.

    ``aggregate="token"``: w = clip(2 sigmoid(sgn(A) delta), 1 - alpha, 1 + alpha), A' = A ((1 - lambda) + lambda w),
    then each turn's A' is rescaled toward the mean |A'| of its rollout's turns, by a factor in [1/2, 2], which does not
    conserve their sum. ``aggregate="turn"``: w = clip(exp(sgn(A) mean delta), 0.8, 1.2) for the turn.

    Contexts: rollout, loss and evaluation without skill, teacher with it (one bank for all methods; the original
    appends a successful sibling). Everything is detached. A step is a turn with all its response tokens; the original
    restricts the gap to the action text on ALFWorld and refreshes its teacher every 10 updates.

    Source: the first author's experiments for StepOPSD (arXiv 2605.27140). Confidence: formula high; that the
    published row used it, low.
    """

    name = "step_opsd"
    Options = StepOPSDOptions
    needs_student_log_probs = True
    weighs_outcome = True
    needs_teacher = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found, mask = self.options, outcome(batch, self.config), batch.policy_mask
        gap = identity_gap(batch, teacher).double()
        evidence = turn_mean(gap, mask)
        mixing = mixing_weight(step + 1, options.mixing, options.decay_steps)
        if options.aggregate == "turn":
            weight = bounded_weight(found.advantage, evidence, options.band)[:, None].expand_as(gap)
        else:
            weight = bounded_weight(found.advantage, gap, options.band, options.shape)
        shaped = mix(found.advantage, weight, mixing)
        if options.aggregate == "token" and options.equal_steps:
            shaped = equalise_steps(shaped, mask, batch.groups, options.step_ratio)
        metrics = {"credit/mixing": mixing} | token_mean(batch, "teacher/gap", gap)
        metrics |= token_mean(batch, "credit/token_weight", weight)
        trace = {"identity_gap": evidence, "weight": turn_mean(weight, mask)}
        return credit_of(batch, found, shaped, metrics, trace, gap)

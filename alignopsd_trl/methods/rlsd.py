"""RLSD: GRPO whose advantage is reweighted token by token with the teacher's gap."""

from __future__ import annotations

from dataclasses import dataclass, field

from alignopsd_trl.common.options import Count, Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, credit_of, identity_gap, token_mean
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.methods.objectives import mix, mixing_weight, rlsd_weight, turn_mean
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class RLSDOptions:
    mixing: Size = field(default=0.5, metadata={"help": "lambda at the first update (0.5 in all published figures)."})
    band: Size = field(default=0.2, metadata={"help": "eps_w: weights stay in [1 - band, 1 + band]."})
    decay_steps: Count = field(
        default=100,
        metadata={
            "help": "Updates over which lambda falls to 0: 100 in the launchers of the published table, 60 in the "
            "authors' own code, 0 (constant) in the SDAR paper's table."
        },
    )
    warmup_steps: Count = field(
        default=0, metadata={"help": "Updates over which lambda rises before it falls (authors' code: optional)."}
    )
    negative_only: bool = field(
        default=False, metadata={"help": "Reweight failed rollouts only (an option of the authors' code)."}
    )


@register
class RLSD(Baseline):
    """Token advantages A ((1 - lambda) + lambda w), w = clip(exp(sgn(A) delta), 0.8, 1.2); no auxiliary loss.

    delta is the identity gap of the rollout snapshot, so weights are fixed for the batch; all of it is detached. The
    sign of A is kept and |A_hat / A - 1| <= lambda * band. Contexts: rollout, loss and evaluation without skill,
    teacher with it. The penalty on invalid actions is added after weighting, as for every method here. The authors'
    older teacher snapshot (every 20 updates) is left out: the teacher is the rollout snapshot.

    Source: RLSD (arXiv 2604.03128) and SDAR's release, which agree. Confidence: high.
    """

    name = "rlsd"
    Options = RLSDOptions
    needs_student_log_probs = True
    weighs_outcome = True
    needs_teacher = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        options, found = self.options, outcome(batch, self.config)
        gap = identity_gap(batch, teacher).double()
        weight = rlsd_weight(found.advantage, gap, options.band, options.negative_only)
        mixing = mixing_weight(step + 1, options.mixing, options.decay_steps, options.warmup_steps)
        metrics = {"credit/mixing": mixing} | token_mean(batch, "teacher/gap", gap)
        metrics |= token_mean(batch, "credit/token_weight", weight)
        trace = {"identity_gap": turn_mean(gap, batch.policy_mask), "weight": turn_mean(weight, batch.policy_mask)}
        return credit_of(batch, found, mix(found.advantage, weight, mixing), metrics, trace, gap)

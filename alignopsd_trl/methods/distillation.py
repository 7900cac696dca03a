"""SDAR and Skill-SD, which add a distillation loss on the sampled tokens to GRPO.

The teacher is the privileged view of the snapshot, scored once per batch and detached. The loss is computed on the live
log-probs of TRL's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.common.options import Size, option
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, identity_scores, token_gaps, token_mean
from alignopsd_trl.methods.objectives import gated_loss, weighted_k3_loss
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class AuxiliaryOptions:
    """Options of a method with an auxiliary loss."""

    coefficient: Size = option(0.01, "Weight of the auxiliary loss.")


class Distillation(Baseline):
    """Outcome advantages plus ``coefficient`` times an auxiliary loss toward the teacher, which a subclass writes."""

    Options = AuxiliaryOptions
    needs_teacher = True
    takes_student_log_probs = True

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.auxiliary_weight = self.options.coefficient

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        return self.with_teacher(super().assign(batch, teacher, step), batch, teacher)

    def with_teacher(self, credit: Credit, batch: TurnBatch, teacher: Teacher) -> Credit:
        """Adds the teacher's scores as targets, and the mean gap as a metric if the snapshot was scored."""
        scores = identity_scores(batch, teacher)
        credit.targets["teacher"] = scores
        if batch.student_log_probs is not None:
            gap = scores - batch.student_log_probs
            credit.metrics |= token_mean(batch, "teacher/gap", gap)
            credit.trace |= token_gaps(batch, identity=gap)
        return credit


@dataclass(frozen=True)
class SDAROptions(AuxiliaryOptions):
    gate_beta: Size = option(5.0, "Slope of the gate (5 in the published figures; 0, 1 and 10 were swept).")


@register
class SDAR(Distillation):
    """GRPO plus 0.01 times the gated gap.

    Objective: L_clip(A) + c Agg(g (l+ - l)), g = sg(sigmoid(beta (l+ - l))). The gate follows the current policy. The
    gradient with respect to l is -g: all sampled tokens rise, and only differences between gates teach. The value is
    about -KL and rises toward 0 as the policy nears the teacher; do not read it as a loss.

    Contexts: rollout, loss and evaluation without skill, teacher with it. Detached: the teacher and the gate.
    Source: SDAR (arXiv 2605.15155), gap gating, and its release. Confidence: high.
    """

    name = "sdar"
    Options = SDAROptions

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        return gated_loss(log_probs, targets["teacher"], self.options.gate_beta)


@dataclass(frozen=True)
class SkillSDOptions(AuxiliaryOptions):
    coefficient: Size = option(0.001, "Weight of the k3 loss (0.001 in every published figure).")


@register
class SkillSD(Distillation):
    """GRPO plus 0.001 times rho k3(l - l+).

    Objective: L_clip(A) + c Agg(rho (exp(-d) - 1 + d)), d = l - l+, rho = exp(l - l_old), exponents bounded by 20 and
    10. Contexts: rollout, loss and evaluation without skill, teacher with it. Detached: the teacher only; the gradient
    runs through rho, which makes it the reverse-KL gradient also off-policy.

    The original summarises skills from the agent's own trajectories; here, as in the published table, all methods share
    one bank. Source: Skill-SD (arXiv 2604.10674) and SDAR's release. Confidence: high.
    """

    name = "skill_sd"
    Options = SkillSDOptions

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        return weighted_k3_loss(log_probs, targets["teacher"], old_log_probs)

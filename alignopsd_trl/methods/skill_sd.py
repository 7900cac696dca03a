"""Skill-SD: GRPO with an importance-weighted k3 loss toward the skill-conditioned teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from alignopsd_trl.common.options import Size, option
from alignopsd_trl.methods.distillation import AuxiliaryOptions, Distillation
from alignopsd_trl.methods.objectives import weighted_k3_loss
from alignopsd_trl.methods.registry import register


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

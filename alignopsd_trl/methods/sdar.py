"""SDAR: GRPO with a gated sampled-token loss toward the skill-conditioned teacher."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from alignopsd_trl.common.options import Size, option
from alignopsd_trl.methods.distillation import AuxiliaryOptions, Distillation
from alignopsd_trl.methods.objectives import gated_loss
from alignopsd_trl.methods.registry import register


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

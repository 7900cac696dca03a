"""OPSD: on-policy self-distillation from the privileged view, without a reward."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from alignopsd_trl.methods.base import Coefficients, Credit, Teacher, register
from alignopsd_trl.methods.distillation import Distillation
from alignopsd_trl.objectives import gated_loss, sampled_token_loss
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class OPSDOptions:
    form: str = field(
        default="sampled_token",
        metadata={
            "choices": ("sampled_token", "gated"),
            "help": "'sampled_token': the objective as the paper describes it. 'gated': what the release behind the "
            "published OPSD rows ran, SDAR's loss without a policy loss.",
        },
    )
    sampled_coefficient: float = field(
        default=1.0, metadata={"help": "Weight of form='sampled_token'; alone, it only scales the learning rate."}
    )
    gated_coefficient: float = field(
        default=0.01, metadata={"help": "Weight of form='gated' (0.01 in the published rows)."}
    )
    gate_beta: float = field(default=5.0, metadata={"help": "Slope of the gate (5 in the published rows)."})


@register
class OPSD(Distillation):
    """Distillation alone: no reward, no policy loss (c_pg = 0).

    Objective (``form="sampled_token"``): the token mean of -sg(rho (l+ - l)) l, rho = exp(l - l_old); on-policy its
    expected gradient is that of KL(student || teacher). ``form="gated"``: the token mean of
    sg(sigmoid(5 (l+ - l))) (l+ - l), coefficient 0.01; the published figures come from this one, together with a KL to
    the reference and an entropy bonus of the same order (set ``beta`` and ``entropy_coef`` for them).

    Contexts: rollout, loss and evaluation without skill, teacher with it. Detached: the teacher, rho and the gate. The
    vocabulary form of the original authors is `objectives.divergence_loss`; it needs the live logits of both views,
    which no hook of a method has, so it is no option here.

    Source: OPSD (arXiv 2601.18734), its sampled-token option; the gated form from SDAR's release.
    Confidence: high for both formulas; that the published rows used the gated form, high.
    """

    name = "opsd"
    Options = OPSDOptions

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        zero = torch.zeros_like(batch.policy_mask, dtype=torch.float32)
        return self.with_teacher(Credit(zero), batch, teacher)

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        if self.options.form == "gated":
            return gated_loss(log_probs, targets["teacher"], self.options.gate_beta)
        return sampled_token_loss(log_probs, targets["teacher"], old_log_probs)

    def coefficients(self, step: int) -> Coefficients:
        gated = self.options.form == "gated"
        weight = self.options.gated_coefficient if gated else self.options.sampled_coefficient
        return Coefficients(policy=0.0, auxiliary=weight)

"""OPSD: on-policy self-distillation from the privileged view, without a reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from alignopsd_trl.common.options import Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.distillation import Distillation, VocabularyOptions
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class OPSDOptions(VocabularyOptions):
    form: Literal["sampled_token", "gated", "vocabulary"] = field(
        default="sampled_token",
        metadata={
            "help": "'sampled_token': the objective as the paper describes it. 'gated': what the release behind the "
            "published OPSD rows ran, SDAR's loss without a policy loss. 'vocabulary': the main form of OPSD's own "
            "authors, a divergence over the teacher's likeliest tokens; no figure of the table used it.",
        },
    )
    sampled_coefficient: Size = field(
        default=1.0, metadata={"help": "Weight of form='sampled_token'; alone, it only scales the learning rate."}
    )
    gated_coefficient: Size = field(
        default=0.01, metadata={"help": "Weight of form='gated' (0.01 in the published rows)."}
    )
    gate_beta: Size = field(default=5.0, metadata={"help": "Slope of the gate (5 in the published rows)."})


@register
class OPSD(Distillation):
    """Distillation alone: no reward, no policy loss (c_pg = 0).

    Objective (``form="sampled_token"``): the token mean of -sg(rho (l+ - l)) l, rho = exp(l - l_old); on-policy its
    expected gradient is that of KL(student || teacher). ``form="gated"``: the token mean of
    sg(sigmoid(5 (l+ - l))) (l+ - l), coefficient 0.01; the published figures come from this one, together with a KL to
    the reference and an entropy bonus of the same order (set ``beta`` and ``entropy_coef`` for them).

    ``form="vocabulary"``: the token mean of beta KL(teacher || M) + (1 - beta) KL(student || M), M = (1 - beta) student
    + beta teacher, over the teacher's 50 likeliest tokens, both renormalised, at temperature 1.1. It needs the logits
    of both views: one more forward in scoring and one in the update.

    Contexts: rollout, loss and evaluation without skill, teacher with it. Detached: the teacher, rho and the gate. The
    teacher is the snapshot that made the rollouts, as in all rows here; OPSD's authors keep the initial weights
    (``teacher_model_kind="base"``).

    Source: OPSD (arXiv 2601.18734), its main form and its sampled-token option; the gated form from SDAR's release.
    Confidence: high for the formulas; that the published rows used the gated form, high.
    """

    name = "opsd"
    Options = OPSDOptions
    policy_weight = 0.0

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        credit = Credit(torch.zeros_like(batch.policy_mask, dtype=torch.float32))
        return self.with_teacher(credit, batch, teacher)

    @property
    def gate_slope(self) -> float | None:
        return self.options.gate_beta if self.options.form == "gated" else None

    def weight_of_form(self) -> float:
        options = self.options
        weights = {
            "sampled_token": options.sampled_coefficient,
            "gated": options.gated_coefficient,
            "vocabulary": options.vocabulary_coefficient,
        }
        return weights[options.form]

"""SDAR and Skill-SD, which add a distillation loss on the sampled tokens to GRPO, and OPSD, which also does without it.

The teacher is the privileged view of the snapshot, scored once per batch and detached. The loss is computed on the live
log-probs of TRL's own forward. Contexts: rollout, loss and evaluation without skill, teacher with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from alignopsd_trl.common.options import Count, Size, option
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.baseline import Baseline, identity_scores, token_gaps, token_mean
from alignopsd_trl.methods.objectives import divergence_loss, gated_loss, sampled_token_loss, weighted_k3_loss
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

    Detached: the teacher and the gate. Source: SDAR (arXiv 2605.15155), gap gating, and its release. Confidence: high.
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
    10. Detached: the teacher only; the gradient runs through rho, which makes it the reverse-KL gradient also
    off-policy.

    The original summarises skills from the agent's own trajectories; here, as in the published table, all methods share
    one bank. Source: Skill-SD (arXiv 2604.10674) and SDAR's release. Confidence: high.
    """

    name = "skill_sd"
    Options = SkillSDOptions

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        return weighted_k3_loss(log_probs, targets["teacher"], old_log_probs)


# OPSD: on-policy self-distillation from the privileged view, alone or beside GRPO


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions:
    """Options of the form that compares whole distributions."""

    vocabulary_coefficient: Size = option(1.0, "Weight of form='vocabulary'.")
    vocabulary_size: Count = option(
        50,
        "form='vocabulary': the teacher's likeliest tokens that are compared at each position, "
        "renormalised (50 in the runs of OPSD's authors).",
    )
    divergence_beta: Size = option(0.5, "form='vocabulary': 0 is KL(teacher || student), 1 is KL(student || teacher).")
    divergence_temperature: Size = option(1.1, "form='vocabulary': divides the logits of both views.")


@dataclass(frozen=True)
class GRPOOPSDOptions(VocabularyOptions, AuxiliaryOptions):
    form: Literal["sampled_token", "constant_gate", "vocabulary"] = option(
        "sampled_token",
        "'sampled_token': OPSD's objective beside GRPO's. 'constant_gate': the release behind the "
        "published ALFWorld, WebShop and 7B cells, a gate of 1/2 from whose gradient the teacher cancels out. "
        "'vocabulary': the main form of OPSD's authors beside GRPO's; no figure of the table used it.",
    )

    gate_beta = 0.0  # no option: a gate of this slope is 1/2


@dataclass(frozen=True)
class OPSDOptions(VocabularyOptions):
    form: Literal["sampled_token", "gated", "vocabulary"] = option(
        "sampled_token",
        "'sampled_token': the objective as the paper describes it. 'gated': what the release behind the "
        "published OPSD rows ran, SDAR's loss without a policy loss. 'vocabulary': the main form of OPSD's own "
        "authors, a divergence over the teacher's likeliest tokens; no figure of the table used it.",
    )
    sampled_coefficient: Size = option(1.0, "Weight of form='sampled_token'; alone, it only scales the learning rate.")
    gated_coefficient: Size = option(0.01, "Weight of form='gated' (0.01 in the published rows).")
    gate_beta: Size = option(5.0, "Slope of the gate (5 in the published rows).")

    @property
    def coefficient(self) -> float:
        """Weight of a form that compares sampled tokens."""
        return self.gated_coefficient if self.form == "gated" else self.sampled_coefficient


@register
class GRPOOPSD(Distillation):
    """GRPO plus 0.01 times OPSD's loss.

    Objective: L_clip(A) + 0.01 Agg(-sg(rho (l+ - l)) l). ``form="constant_gate"``: L_clip(A) + 0.01 Agg((l+ - l) / 2),
    whose gradient does not contain the teacher: zero in expectation on-policy, weak self-imitation later in a batch.
    ``form="vocabulary"``: L_clip(A) + ``vocabulary_coefficient`` times the divergence of `OPSD`'s form of that name.

    Detached: the teacher and rho. Source: the joint objective as the paper describes it; coefficient and constant gate
    from SDAR's release. Confidence: release form high; that its coefficient suits the sampled-token form is inferred;
    which form the published 3B Search-QA cells used is unknown.
    """

    name = "grpo_opsd"
    Options = GRPOOPSDOptions

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.compares_vocabularies = self.options.form == "vocabulary"
        if self.compares_vocabularies:
            self.kept_logits, self.auxiliary_weight = self.options.vocabulary_size, self.options.vocabulary_coefficient

    def with_teacher(self, credit: Credit, batch: TurnBatch, teacher: Teacher) -> Credit:
        """As in `Distillation`. If whole distributions are compared, the targets are the teacher's likeliest tokens and
        their logits."""
        if not self.compares_vocabularies:
            return super().with_teacher(credit, batch, teacher)
        found = teacher.vocabulary(batch, self.options.vocabulary_size)
        credit.targets["vocabulary_ids"], credit.targets["teacher"] = found
        return credit

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        options, teacher = self.options, targets["teacher"]
        if self.compares_vocabularies:
            beta, temperature = options.divergence_beta, options.divergence_temperature
            return divergence_loss(targets["vocabulary"], teacher, beta, temperature)
        if options.form == "sampled_token":
            return sampled_token_loss(log_probs, teacher, old_log_probs)
        return gated_loss(log_probs, teacher, options.gate_beta)


@register
class OPSD(GRPOOPSD):
    """Distillation alone: no reward, no policy loss (c_pg = 0).

    Objective (``form="sampled_token"``): the token mean of -sg(rho (l+ - l)) l, rho = exp(l - l_old); on-policy its
    expected gradient is that of KL(student || teacher). ``form="gated"``: the token mean of
    sg(sigmoid(5 (l+ - l))) (l+ - l), coefficient 0.01; the published figures come from this one, together with a KL to
    the reference and an entropy bonus of the same order (set ``beta`` and ``entropy_coef`` for them).

    ``form="vocabulary"``: the token mean of beta KL(teacher || M) + (1 - beta) KL(student || M), M = (1 - beta) student
    + beta teacher, over the teacher's 50 likeliest tokens, both renormalised, at temperature 1.1. It needs the logits
    of both views: one more forward in scoring and one in the update.

    Detached: the teacher, rho and the gate. The teacher is the snapshot that made the rollouts, as in all rows here;
    OPSD's authors keep the initial weights (``teacher_model_kind="base"``).

    Source: OPSD (arXiv 2601.18734), its main form and its sampled-token option; the gated form from SDAR's release.
    Confidence: high for the formulas; that the published rows used the gated form, high.
    """

    name = "opsd"
    Options = OPSDOptions
    policy_weight = 0.0

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        credit = Credit(torch.zeros_like(batch.policy_mask, dtype=torch.float32))
        return self.with_teacher(credit, batch, teacher)

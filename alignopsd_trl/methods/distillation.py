"""Methods that add (or consist of) a distillation loss on the sampled tokens.

The teacher is the privileged view of the snapshot, scored once per batch and detached. The loss is computed on the live
log-probs of TRL's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.common.options import Count, Size
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, identity_scores, token_mean
from alignopsd_trl.methods.objectives import divergence_loss, gated_loss, sampled_token_loss
from alignopsd_trl.methods.token_gaps import token_gaps
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class AuxiliaryOptions:
    """Options of a method with an auxiliary loss."""

    coefficient: Size = field(default=0.01, metadata={"help": "Weight of the auxiliary loss."})


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions:
    """Options of the form that compares whole distributions."""

    vocabulary_coefficient: Size = field(default=1.0, metadata={"help": "Weight of form='vocabulary'."})
    vocabulary_size: Count = field(
        default=50,
        metadata={
            "help": "form='vocabulary': the teacher's likeliest tokens that are compared at each position, "
            "renormalised (50 in the runs of OPSD's authors)."
        },
    )
    divergence_beta: Size = field(
        default=0.5,
        metadata={"help": "form='vocabulary': 0 is KL(teacher || student), 1 is KL(student || teacher)."},
    )
    divergence_temperature: Size = field(
        default=1.1, metadata={"help": "form='vocabulary': divides the logits of both views."}
    )


class Distillation(Baseline):
    """Outcome advantages plus ``coefficient`` times an auxiliary loss toward the teacher: the divergence over its
    likeliest tokens for ``form="vocabulary"``, else the gated loss with a `gate_slope`, else the sampled-token loss."""

    Options = AuxiliaryOptions
    needs_teacher = True
    takes_student_log_probs = True

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.compares_vocabularies = getattr(self.options, "form", None) == "vocabulary"
        self.kept_logits = self.options.vocabulary_size if self.compares_vocabularies else 0
        self.auxiliary_weight = self.weight_of_form()

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        return self.with_teacher(super().assign(batch, teacher, step), batch, teacher)

    def with_teacher(self, credit: Credit, batch: TurnBatch, teacher: Teacher) -> Credit:
        """Adds the teacher's scores as targets, and the mean gap as a metric if the snapshot was scored. If whole
        distributions are compared, the targets are the teacher's likeliest tokens and their logits."""
        if self.compares_vocabularies:
            found = teacher.vocabulary(batch, self.options.vocabulary_size)
            credit.targets["vocabulary_ids"], credit.targets["teacher"] = found
            return credit
        scores = identity_scores(batch, teacher)
        credit.targets["teacher"] = scores
        if batch.student_log_probs is not None:
            gap = scores - batch.student_log_probs
            credit.metrics |= token_mean(batch, "teacher/gap", gap)
            credit.trace |= token_gaps(batch, identity=gap)
        return credit

    def weight_of_form(self) -> float:
        """Returns the coefficient of the auxiliary loss that the options choose."""
        return self.options.vocabulary_coefficient if self.compares_vocabularies else self.options.coefficient

    @property
    def gate_slope(self) -> float | None:
        """beta of the gate sigmoid(beta (l+ - l)); `None` for a loss without a gate."""
        return None

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        options, teacher = self.options, targets["teacher"]
        if self.compares_vocabularies:
            beta, temperature = options.divergence_beta, options.divergence_temperature
            return divergence_loss(targets["vocabulary"], teacher, beta, temperature)
        if self.gate_slope is not None:
            return gated_loss(log_probs, teacher, self.gate_slope)
        return sampled_token_loss(log_probs, teacher, old_log_probs)

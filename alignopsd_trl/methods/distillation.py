"""Methods that add a distillation loss on the sampled tokens to GRPO.

The teacher is the privileged view of the snapshot, scored once per batch and detached. The loss is computed on the live
log-probs of TRL's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alignopsd_trl.common.options import Size, option
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, identity_scores, token_gaps, token_mean
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

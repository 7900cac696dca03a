"""Methods that add (or consist of) a distillation loss on the sampled tokens.

The teacher is the privileged view of the snapshot, scored once a batch and detached. The loss is computed on the live
log-probs of TRL's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from alignopsd_trl.methods.base import Coefficients, Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, identity_scores, token_mean
from alignopsd_trl.methods.token_gaps import token_gaps
from alignopsd_trl.options import Size
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class AuxiliaryOptions:
    """Options of a method with an auxiliary loss."""

    coefficient: Size = field(default=0.01, metadata={"help": "Weight of the auxiliary loss."})


class Distillation(Baseline):
    """Outcome advantages plus ``coefficient`` times an auxiliary loss toward the teacher of the same tokens."""

    Options = AuxiliaryOptions
    needs_teacher = True
    takes_student_log_probs = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        return self.with_teacher(super().assign(batch, teacher, step), batch, teacher)

    def with_teacher(self, credit: Credit, batch: TurnBatch, teacher: Teacher) -> Credit:
        """Adds the teacher's scores as targets, and the mean gap as a metric where the snapshot was scored anyway."""
        scores = identity_scores(batch, teacher)
        credit.targets["teacher"] = scores
        if batch.student_log_probs is not None:
            gap = scores - batch.student_log_probs
            credit.metrics |= token_mean(batch, "teacher/gap", gap)
            credit.trace |= token_gaps(batch, identity=gap)
        return credit

    def coefficients(self, step: int) -> Coefficients:
        return Coefficients(policy=1.0, auxiliary=self.options.coefficient)

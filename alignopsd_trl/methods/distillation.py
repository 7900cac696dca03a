"""Methods that add (or consist of) a distillation loss on the sampled tokens.

The teacher is the privileged view of the snapshot, scored once a batch and detached. The loss is computed on the live
log-probs of TRL's own forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from alignopsd_trl.methods.base import Coefficients, Credit, Teacher
from alignopsd_trl.methods.baseline import Baseline, identity_scores
from alignopsd_trl.turns import TurnBatch


@dataclass(frozen=True)
class AuxiliaryOptions:
    """Options of a method with an auxiliary loss."""

    coefficient: float = field(default=0.01, metadata={"help": "Weight of the auxiliary loss."})


class Distillation(Baseline):
    """Outcome advantages plus ``coefficient`` times an auxiliary loss toward the teacher of the same tokens."""

    Options = AuxiliaryOptions
    needs_teacher = True

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        credit = super().assign(batch, teacher, step)
        credit.targets["teacher"] = identity_scores(batch, teacher)
        return credit

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError

    def coefficients(self, step: int) -> Coefficients:
        return Coefficients(policy=1.0, auxiliary=self.options.coefficient)

"""Auxiliary losses beside the policy loss: none in the paper, two of the released launchers, and one beyond both.

A loss has targets, which are constants of the round, and a value per token on the live log-probs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.credit import TurnWeights, span_means
from alignopsd_trl.methods.align_opsd.rectification import Mixture
from alignopsd_trl.methods.align_opsd.report import Stages
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.methods.objectives import divergence_loss, gate, gated_loss, weighted_gap
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions

Targets = dict[str, torch.Tensor]


class AuxiliaryLoss:
    """The base of the losses, and the paper's none: its weight is 0 and neither method is called."""

    reads_gaps = False  # whether the targets depend on the log-probs of turns without an advantage

    def __init__(self, options: AlignOPSDOptions):
        self.options = options

    def targets(self, batch: TurnBatch, teacher: Teacher, stages: Stages) -> Targets:
        """Computes what `per_token` reads, ``(M, L)`` or ``(M, L, K)`` each."""
        raise NotImplementedError

    def per_token(self, targets: Targets, log_probs: torch.Tensor) -> torch.Tensor:
        """Computes the loss ``(R, L)``, with gradient, from the targets of R rows."""
        raise NotImplementedError


class AlignmentLoss(AuxiliaryLoss):
    """The gated loss to the rectified teacher, with gate and target frozen at rollout time (method facts F.51)."""

    reads_gaps = True

    def targets(self, batch: TurnBatch, teacher: Teacher, stages: Stages) -> Targets:
        return {"teacher": stages.views.rectified, "gate": gate(stages.views.rectified_gap, self.options.gate_beta)}

    def per_token(self, targets: Targets, log_probs: torch.Tensor) -> torch.Tensor:
        return weighted_gap(log_probs, targets["teacher"], targets["gate"])


class SdarLoss(AlignmentLoss):
    """The gated loss to the identity teacher, with a gate that follows the policy (method facts F.52)."""

    def targets(self, batch: TurnBatch, teacher: Teacher, stages: Stages) -> Targets:
        return {"teacher": stages.identity}

    def per_token(self, targets: Targets, log_probs: torch.Tensor) -> torch.Tensor:
        return gated_loss(log_probs, targets["teacher"], self.options.gate_beta)


class DistributionLoss(AuxiliaryLoss):
    """The divergence to the rectified teacher's likeliest tokens, times the token's weight (beyond the paper)."""

    def targets(self, batch: TurnBatch, teacher: Teacher, stages: Stages) -> Targets:
        options, sources, mixed = self.options, stages.matches.sources, ()
        if sources.size(1):
            mixture = Mixture.of(sources, stages.views, options.aggregation, options.distribution_temperature)
            mixed = mixture.sources, mixture
        ids, logits = teacher.vocabulary(batch, options.distribution_size, *mixed)
        found = {"vocabulary_ids": ids, "teacher": logits}
        if options.distribution_weighting != "flat":
            weights, weight = stages.weights, stages.weights.by_token
            if options.distribution_weighting == "span" and isinstance(weights, TurnWeights):
                weight = span_means(weights.weight, weights.rectified.tokens, weights.span)[:, None]
            found["weight"] = weight.float().expand(-1, batch.policy_mask.size(1))
        return found

    def per_token(self, targets: Targets, log_probs: torch.Tensor) -> torch.Tensor:
        options = self.options
        loss = divergence_loss(
            targets["vocabulary"], targets["teacher"], options.distribution_beta, options.distribution_temperature
        )
        return loss * targets.get("weight", 1.0)


LOSSES = {"none": AuxiliaryLoss, "alignment": AlignmentLoss, "sdar": SdarLoss, "distribution": DistributionLoss}

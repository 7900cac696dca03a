"""The results of all stages of a round, which the report and the auxiliary losses read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from alignopsd_trl.methods.align_opsd.correspondence import Correspondence
from alignopsd_trl.methods.align_opsd.credit import CreditWeights
from alignopsd_trl.methods.align_opsd.rectification import Rectification
from alignopsd_trl.methods.align_opsd.spans import Spans
from alignopsd_trl.methods.grpo import OutcomeAdvantage


@dataclass(frozen=True)
class Stages:
    """What `AlignOPSD.assign` computed of a batch.

    Args:
        outcome: A and residuals.
        matches: H and Psi of the groups that were compared for matches.
        identity: ``(M, L)`` log-probs under each turn's own privileged view.
        views: the rectified views and gaps.
        spans: the partition of rollouts.
        weights: E, B, Q and W.
    """

    outcome: OutcomeAdvantage
    matches: Correspondence
    identity: torch.Tensor
    views: Rectification
    spans: Spans
    weights: CreditWeights

"""AlignOPSD: decision-aligned supervision rectification and semi-Markov hierarchical credit assignment.

    reasoning traces of groups with an advantage ─► H, eligible, Psi, action filter               (Correspondence)
    one teacher.score of identity and matched pairs ─► rectified gap                              (Rectification)
    profiles ─► divergence ─► threshold over all processes, if needed with all traces ─► spans    (Spans)
    evidence ─► B, Q, density, clip range, W                                                      (CreditWeights)

The formulas are in `correspondence`, `rectification`, `spans` and `credit`, with a frozen result each. This file runs
them with a teacher, and `report` makes metrics and records of their results. An ablation runs another function at its
stage, or computes nothing there: without rectification no matched view is scored, with ``allocation="turn"`` no profile
is made. Which teacher calls are made depends on the config and on counts over all processes, never on the local batch,
so that all processes make the same ones.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.align_opsd.auxiliary import LOSSES
from alignopsd_trl.methods.align_opsd.correspondence import Correspondence, match_scored
from alignopsd_trl.methods.align_opsd.credit import weigh
from alignopsd_trl.methods.align_opsd.rectification import Rectification, rectify
from alignopsd_trl.methods.align_opsd.report import Stages, report
from alignopsd_trl.methods.align_opsd.spans import decision_spans, random_spans, whole_rollouts
from alignopsd_trl.methods.base import Credit, Teacher, register
from alignopsd_trl.methods.baseline import identity_scores
from alignopsd_trl.methods.grpo import GRPO, outcome, token_advantages
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig

SPANS = {"span": decision_spans, "random": random_spans}


@register
class AlignOPSD(GRPO):
    """The method of the paper and, by its config, the paper's ablations.

    Which parts run follows from the config: ``rectify`` and ``alpha_max``, ``allocation``, ``auxiliary_loss``.

    Args:
        config: with the fields of [`AlignOPSDOptions`].

    Raises:
        ValueError: for ``method_options``, which only the baselines have.
    """

    name = "align_opsd"

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        if getattr(config, "method_options", None):
            raise ValueError(
                f"method_options={config.method_options!r}: the options of align_opsd are fields of the config itself; "
                "set them there, or as flags such as --alpha_max 0.5"
            )
        self.loss = LOSSES[config.auxiliary_loss](config)
        self.needs_gap = config.allocation != "none" or config.auxiliary_loss in ("alignment", "distribution")
        self.needs_matches = self.needs_gap and config.rectify and config.alpha_max > 0
        self.needs_encoder = self.needs_matches or config.allocation in SPANS
        self.needs_teacher = self.needs_gap or config.auxiliary_loss == "sdar"
        self.needs_student_log_probs = self.needs_gap
        self.weighs_outcome = not self.loss.reads_gaps
        weights = {"none": 0.0, "distribution": config.distribution_coefficient}
        self.auxiliary_weight = weights.get(config.auxiliary_loss, config.auxiliary_coefficient)
        self.kept_logits = config.distribution_size if config.auxiliary_loss == "distribution" else 0
        self.untaught = self  # the method of the rounds after distribution_rounds
        if config.auxiliary_loss == "distribution" and config.distribution_rounds is not None:
            alone = copy(config)
            alone.auxiliary_loss = "none"
            self.untaught = AlignOPSD(alone)

    def at(self, step: int) -> AlignOPSD:
        taught = self.config.distribution_rounds
        return self if taught is None or step < taught else self.untaught

    @torch.no_grad()
    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        if not self.needs_gap:  # A alone; SDAR's loss reads the identity view
            targets = {"teacher": identity_scores(batch, teacher)} if self.needs_teacher else {}
            return replace(super().assign(batch, teacher, step), targets=targets)
        config, result = self.config, outcome(batch, self.config)  # A
        matches = Correspondence.empty(batch)
        if self.needs_encoder:
            matches = match_scored(batch, teacher, config, self.needs_matches)  # d+ and d of each turn, H, Psi
        identity, views = self.rectify(batch, teacher, matches)  # l+ of the turn's own view; the rectified gap
        spans = SPANS.get(config.allocation, whole_rollouts)(batch, teacher, matches, config)  # P, D, S
        weights = weigh(views, batch, result.advantage, spans.span, config, teacher.gather)  # E, B, Q, W
        stages = Stages(result, matches, identity, views, spans, weights)
        metrics, trace = report(config, batch, stages)
        targets = {} if config.auxiliary_loss == "none" else self.loss.targets(batch, teacher, stages)
        advantages = token_advantages(result.advantage[:, None] * weights.by_token, batch.policy_mask, result.residual)
        return Credit(advantages, metrics, targets, trace)

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """The loss of ``auxiliary_loss``, see `auxiliary`."""
        return self.loss.per_token(targets, log_probs)

    def rectify(
        self, batch: TurnBatch, teacher: Teacher, matches: Correspondence
    ) -> tuple[torch.Tensor, Rectification]:
        """Scores identity and matched views in one call, and computes their gaps to the student: the stage that a
        variant of rectification overrides. A turn without a source keeps its identity view. Returns ``(M, L)`` identity
        log-probs, and the rectified view with its gap."""
        assert batch.student_log_probs is not None, "the method declares needs_student_log_probs"
        config, sources, every = self.config, matches.sources, torch.arange(len(batch), device=batch.task.device)
        row, slot = (sources >= 0).nonzero(as_tuple=True)
        scores = teacher.score(batch, torch.cat([every, sources[row, slot]]), torch.cat([every, row]))
        identity, matched = scores.tensor_split([len(every)])
        return identity, rectify(
            batch.student_log_probs,
            identity,
            matched,
            sources,
            matches.similarity,
            threshold=config.similarity_threshold,
            temperature=config.aggregation_temperature,
            alpha_max=config.alpha_max,
            aggregation=config.aggregation,
        )

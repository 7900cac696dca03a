"""AlignOPSD: decision-aligned supervision rectification and semi-Markov hierarchical credit assignment.

    thoughts, where credit can move ─► embeddings ─► per task: H, eligible, Psi, action filter    (Correspondence)
    one teacher.score of identity and matched pairs ─► rectified gap                              (Rectification)
    profiles ─► divergence ─► further thoughts ─► threshold over all processes ─► spans           (Spans)
    evidence ─► B, Q, density, box, W                                                             (CreditWeights)

The formulas are in `correspondence`, `rectification`, `spans` and `credit`, a frozen result each; this file connects
them to the teacher, `thinking` leaves out the thoughts that change nothing, and `report` says what happened. What an
ablation does not need is not asked for: without rectification no matched view is scored, with ``allocation="turn"`` no
profile is made. Which teacher calls are made depends on the config and on counts that all processes agree on, never on
the local batch, so that all processes make the same ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.advantages import token_advantages
from alignopsd_trl.methods.align_opsd.correspondence import Correspondence, correspond
from alignopsd_trl.methods.align_opsd.credit import CreditWeights, span_means, weigh
from alignopsd_trl.methods.align_opsd.rectification import Mixture, Rectification, gate, gated_loss, rectify_views
from alignopsd_trl.methods.align_opsd.report import report
from alignopsd_trl.methods.align_opsd.spans import Spans, decision_spans
from alignopsd_trl.methods.align_opsd.thinking import Thinking, think_until_clear, think_where_credit_moves
from alignopsd_trl.methods.base import Coefficients, Credit, Method, Teacher
from alignopsd_trl.methods.grpo import OutcomeAdvantage, outcome
from alignopsd_trl.methods.objectives import divergence_loss
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@register
class AlignOPSD(Method):
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
        self.needs_gap = config.allocation != "none" or config.auxiliary_loss in ("alignment", "distribution")
        self.needs_matches = self.needs_gap and config.rectify and config.alpha_max > 0
        self.needs_profiles = config.allocation in ("span", "random")
        self.needs_scores = self.needs_gap or config.auxiliary_loss == "sdar"
        self.needs_encoder = self.needs_matches or self.needs_profiles
        self.needs_student_log_probs = self.needs_gap
        self.kept_logits = config.distribution_size if config.auxiliary_loss == "distribution" else 0
        self.needs_teacher = self.needs_scores or self.needs_encoder

    @torch.no_grad()
    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        result = outcome(batch, self.config)  # A
        thinking = think_where_credit_moves(batch, teacher) if self.needs_encoder else None  # d+, where it can matter
        matches = self._match(batch, thinking)  # d+ and d of each turn, H, Psi
        identity, views = self.rectify(batch, teacher, matches)  # l+ of the turn's own view; the rectified gap
        thinking = self._think_on(batch, teacher, thinking, matches)  # d+ of as many more as the threshold takes
        spans = self._segment(batch, teacher, matches, thinking)  # P, D, S
        span, weights = None if spans is None else spans.span, None
        if views is not None:  # E, B, Q, W
            weights = weigh(views, batch.policy_mask, result.advantage, batch.groups, span, self.config, teacher.gather)
        metrics, trace = report(self.config, batch, result, thinking, matches, views, spans, weights)
        targets = self._targets(identity, views)
        if self.config.auxiliary_loss == "distribution" and views is not None and weights is not None:
            targets = self._distribution(batch, teacher, matches, views, weights)
        return Credit(self._advantages(batch, result, weights), metrics, targets, trace)

    def zero_advantage(self, batch: TurnBatch) -> torch.Tensor:
        """Zero-advantage turns can be skipped, unless an auxiliary loss trains on them."""
        if self.config.auxiliary_loss != "none":
            return super().zero_advantage(batch)
        return outcome(batch, self.config).advantage == 0

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """The gated alignment loss per token: to the rectified teacher with gate and target frozen at rollout time
        (``"alignment"``, method facts F.51), or to the identity teacher with a live gate (``"sdar"``, F.52). Or the
        divergence to the rectified teacher's likeliest tokens (``"distribution"``), times the token's weight."""
        teacher, config = targets["teacher"], self.config
        if config.auxiliary_loss == "distribution":
            loss = divergence_loss(
                targets["vocabulary"], teacher, config.distribution_beta, config.distribution_temperature
            )
            return loss * targets.get("weight", 1.0)
        if self.config.auxiliary_loss == "alignment":
            return gated_loss(log_probs, teacher, targets["gate"])
        return gated_loss(log_probs, teacher, gate(teacher - log_probs, self.config.gate_beta))

    def coefficients(self, step: int) -> Coefficients:
        config, kind = self.config, self.config.auxiliary_loss
        weights = {"none": 0.0, "distribution": config.distribution_coefficient}
        return Coefficients(auxiliary=weights.get(kind, config.auxiliary_coefficient))

    def rectify(
        self, batch: TurnBatch, teacher: Teacher, matches: Correspondence | None
    ) -> tuple[torch.Tensor | None, Rectification | None]:
        """The stage that a variant of rectification overrides.

        Args:
            batch: the M turns.
            teacher: who scores; every process must make the same calls.
            matches: the retained sources of each turn; `None` without an encoder.

        Returns:
            ``(M, L)`` identity log-probs and the rectified view with its gap; `None` where nothing reads them.
        """
        if not self.needs_scores:
            return None, None
        student = batch.student_log_probs if self.needs_gap else None
        own = torch.arange(len(batch), device=batch.task.device)
        return rectify_views(partial(teacher.score, batch), own, student, matches, self.config)

    # What the stages ask of the teacher, each only if the config needs it

    def _match(self, batch: TurnBatch, thinking: Thinking | None) -> Correspondence | None:
        if thinking is None:
            return None
        theirs, ours = thinking.thoughts, [turn.thought for turn in batch.turns]
        return correspond(theirs, ours, thinking.encode, batch.groups, thinking.asked, self.config, self.needs_matches)

    def _think_on(
        self, batch: TurnBatch, teacher: Teacher, thinking: Thinking | None, matches: Correspondence | None
    ) -> Thinking | None:
        """After scoring, which goes on from what was made of the first prompts."""
        if thinking is None or matches is None or batch.scored is None or self.config.allocation != "span":
            return thinking
        return think_until_clear(batch, teacher, thinking, matches.tasks, self.config)

    def _segment(
        self, batch: TurnBatch, teacher: Teacher, matches: Correspondence | None, thinking: Thinking | None
    ) -> Spans | None:
        if not self.needs_profiles or matches is None or thinking is None:
            return None
        tasks = [*matches.tasks, *thinking.tasks]
        return decision_spans(tasks, batch.groups, self.config, teacher.gather, thinking.bounds)

    def _distribution(
        self,
        batch: TurnBatch,
        teacher: Teacher,
        matches: Correspondence | None,
        views: Rectification,
        weights: CreditWeights,
    ) -> dict[str, torch.Tensor]:
        """Targets of ``auxiliary_loss="distribution"``: the rectified teacher's likeliest tokens, and their weights."""
        config, mixture = self.config, None
        if matches is not None and matches.sources is not None:
            mixture = Mixture.of(matches.sources, views, config.aggregation, config.distribution_temperature)
        sources = None if mixture is None else mixture.sources
        ids, logits = teacher.vocabulary(batch, config.distribution_size, sources, mixture)
        targets = {"vocabulary_ids": ids, "teacher": logits}
        if config.distribution_weighting != "flat":
            targets["weight"] = self._token_weights(weights, batch.policy_mask.size(1))
        return targets

    def _token_weights(self, weights: CreditWeights, width: int) -> torch.Tensor:
        """``(M, width)`` float32: W, or its mean over the tokens of the span."""
        if weights.by_token is not None:
            return weights.by_token
        weight, turns = weights.weight, weights.turns
        assert weight is not None and turns is not None, "the options ask for an allocation that weighs turns"
        if self.config.distribution_weighting == "span":
            weight = span_means(weight, weights.rectified.tokens, turns.span)
        return weight.float()[:, None].expand(-1, width)

    # What comes of it

    def _advantages(self, batch: TurnBatch, result: OutcomeAdvantage, weights: CreditWeights | None) -> torch.Tensor:
        """A W on the optimised tokens, plus the residual of invalid actions."""
        advantage = result.advantage
        if weights is not None and weights.weight is not None:
            by_token = weights.weight[:, None] if weights.by_token is None else weights.by_token
            advantage = advantage[:, None] * by_token
        return token_advantages(advantage, batch.policy_mask, result.residual)

    def _targets(self, identity: torch.Tensor | None, views: Rectification | None) -> dict[str, torch.Tensor]:
        """Targets of the auxiliary loss: the identity teacher, or the rectified one with its gate frozen at rollout
        time."""
        if self.config.auxiliary_loss == "sdar" and identity is not None:
            return {"teacher": identity}
        if self.config.auxiliary_loss == "alignment" and views is not None:
            return {"teacher": views.rectified, "gate": gate(views.rectified_gap, self.config.gate_beta)}
        return {}

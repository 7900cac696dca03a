"""AlignOPSD: decision-aligned supervision rectification and semi-Markov hierarchical credit assignment.

    thoughts ─► embeddings ─► per task: H, eligible, Psi, action filter, profiles, divergence      (Correspondence)
    one teacher.score of identity and matched pairs ─► rectified gap                               (Views)
    threshold over all processes ─► spans                                                          (Spans)
    evidence ─► B, Q, density, box, W ─► token advantages                                          (Credit)

The formulas are in `correspondence`, `rectification`, `spans` and `credit`; this file only connects them to the
teacher. What an ablation does not need is not asked for: without rectification no matched view is scored, with
``allocation="turn"`` no profile is made. Which teacher calls are made depends on the config alone, never on the local
batch, so that all processes make the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.advantages import number_rows, outcome_trace, token_advantages
from alignopsd_trl.methods.align_opsd.correspondence import (
    accept_actions,
    cosine,
    eligibility,
    select_sources,
    task_groups,
)
from alignopsd_trl.methods.align_opsd.credit import (
    Evidence,
    allocate,
    density_box,
    token_weights,
    turn_evidence,
    turn_weights,
)
from alignopsd_trl.methods.align_opsd.rectification import Rectification, gate, gated_loss, rectify
from alignopsd_trl.methods.align_opsd.report import (
    allocation_trace,
    evidence_metrics,
    evidence_trace,
    match_metrics,
    match_trace,
    span_metrics,
    span_trace,
    view_metrics,
    weight_metrics,
)
from alignopsd_trl.methods.align_opsd.spans import (
    adjacent_divergence,
    boundary_quantile,
    clip_threshold,
    profiles,
    random_segment,
    segment,
    trajectories,
)
from alignopsd_trl.methods.base import Coefficients, Credit, Method, Teacher
from alignopsd_trl.methods.grpo import Outcome, outcome
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass
class Correspondence:
    """What thinking says about which turns belong together.

    Attributes:
        thoughts: the teacher's own, M of them.
        sources: ``(M, K)`` int64 retained sources, -1 for none.
        similarity: ``(M, K)`` float32 H of those pairs.
        rejected: pairs that the action filter took away.
        shift, counts: ``(M,)`` divergence from the turn before, and whether it counts; ``None`` without profiles.
    """

    thoughts: list[Thought]
    sources: torch.Tensor
    similarity: torch.Tensor
    rejected: int = 0
    shift: torch.Tensor | None = None
    counts: torch.Tensor | None = None


@register
class AlignOPSD(Method):
    """The method of the paper and, by its config, the paper's ablations.

    Which parts run follows from the config: ``rectify`` and ``alpha_max``, ``allocation``, ``auxiliary_loss``.
    """

    name = "align_opsd"

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.needs_gap = config.allocation != "none" or config.auxiliary_loss == "alignment"
        self.needs_matches = self.needs_gap and config.rectify and config.alpha_max > 0
        self.needs_profiles = config.allocation in ("span", "random")
        self.needs_scores = self.needs_gap or config.auxiliary_loss == "sdar"
        self.needs_encoder = self.needs_matches or self.needs_profiles
        self.needs_student_log_probs = self.needs_gap
        self.needs_teacher = self.needs_scores or self.needs_encoder

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        with torch.no_grad():
            found = outcome(batch, self.config)
            trace = outcome_trace(found.advantage, found.residual)
            credit = Credit(torch.zeros_like(batch.policy_mask, dtype=torch.float32), dict(found.metrics), trace=trace)
            matches = self._correspond(batch, teacher, credit) if self.needs_encoder else None
            views = self._score(batch, teacher, matches, credit) if self.needs_scores else None
            span = self._segment(batch, teacher, matches, credit) if self.needs_profiles else None
            self._allocate(batch, found, views, span, credit)
        return credit

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """The gated alignment loss per token: to the rectified teacher with gate and target frozen at rollout time
        (``"alignment"``, method facts F.51), or to the identity teacher with a live gate (``"sdar"``, F.52)."""
        teacher = targets["teacher"]
        if self.config.auxiliary_loss == "alignment":
            return gated_loss(log_probs, teacher, targets["gate"])
        return gated_loss(log_probs, teacher, gate(teacher - log_probs, self.config.gate_beta))

    def coefficients(self, step: int) -> Coefficients:
        active = self.config.auxiliary_loss != "none"
        return Coefficients(auxiliary=self.config.auxiliary_coefficient if active else 0.0)

    # Correspondence

    def _correspond(self, batch: TurnBatch, teacher: Teacher, credit: Credit) -> Correspondence:
        thoughts = teacher.thoughts(batch)
        filters = self.needs_matches and self.config.action_filter != "none"
        students = [turn.thought for turn in batch.turns]
        texts = [[thought.thinking for thought in side] for side in (thoughts, students)]
        texts += [[thought.action for thought in side] for side in (thoughts, students)] if filters else []
        embeddings = Embeddings(teacher, texts, batch.task.device)
        columns = self._columns(batch, teacher)
        empty = torch.full((len(batch), self.config.max_sources), -1, device=batch.task.device)
        found = Correspondence(thoughts, empty, torch.zeros_like(empty, dtype=torch.float32))
        if self.needs_profiles:
            found.shift = torch.zeros(len(batch), dtype=torch.float64, device=empty.device)
            found.counts = torch.zeros(len(batch), dtype=torch.bool, device=empty.device)
        for rows in task_groups(batch.task, batch.rollout, batch.turn):
            self._correspond_group(batch, rows, embeddings, students, columns, found)
        credit.trace |= {
            "teacher_thinking": [thought.thinking for thought in thoughts],
            "teacher_action": [thought.action for thought in thoughts],
        }
        if self.needs_matches:
            credit.metrics |= match_metrics(found.sources, found.similarity, found.rejected, batch.turn)
        return found

    def _columns(self, batch: TurnBatch, teacher: Teacher) -> int | None:
        """Turns of the whole batch, which only the entropy distance asks for."""
        if not self.needs_profiles or self.config.profile_distance != "entropy":
            return None
        return int(teacher.gather(torch.tensor([float(len(batch))], device=batch.task.device)).sum())

    def _correspond_group(
        self,
        batch: TurnBatch,
        rows: torch.Tensor,
        embeddings: Embeddings,
        students: Sequence[Thought],
        columns: int | None,
        found: Correspondence,
    ) -> None:
        """Fills the rows of one task group into ``found``."""
        config, rollout, place = self.config, batch.rollout[rows], rows.tolist()
        theirs, ours = [found.thoughts[row] for row in place], [students[row] for row in place]
        similarity = cosine(embeddings.rows(0, rows), embeddings.rows(1, rows))
        valid = [rows.new_tensor([thought.thinking_valid for thought in side]).bool() for side in (theirs, ours)]
        eligible = eligibility(rollout, *valid)
        if self.needs_matches:
            sources = select_sources(similarity, eligible, rollout, config.similarity_threshold, config.max_sources)
            if config.action_filter != "none":
                kept = self._filter(sources, rows, theirs, ours, embeddings)
                found.rejected += int((sources >= 0).sum() - (kept >= 0).sum())
                sources = kept
            found.sources[rows] = torch.where(sources >= 0, rows[sources], -1)
            found.similarity[rows] = similarity.gather(0, sources.clamp_min(0).T).T
        if self.needs_profiles:
            profile, valid_profile = profiles(
                similarity, eligible, config.similarity_threshold, config.profile_temperature
            )
            found.shift[rows], found.counts[rows] = adjacent_divergence(
                profile, valid_profile, eligible, rollout, config.profile_distance, columns
            )

    def _filter(
        self,
        sources: torch.Tensor,
        rows: torch.Tensor,
        theirs: Sequence[Thought],
        ours: Sequence[Thought],
        embeddings: Embeddings,
    ) -> torch.Tensor:
        """Sources whose action agrees with the target's; a rejected one leaves -1 and is not replaced."""
        target, slot = (sources >= 0).nonzero(as_tuple=True)
        source = sources[target, slot]
        kept = accept_actions(
            [thought.action for thought in theirs],
            [thought.action for thought in ours],
            embeddings.cosine(2, 3, rows[source], rows[target]),
            self.config.action_threshold,
            self.config.action_filter,
            source,
            target,
        )
        return sources.index_put((target, slot), torch.where(kept, source, -1))

    # Rectification

    def _score(
        self, batch: TurnBatch, teacher: Teacher, matches: Correspondence | None, credit: Credit
    ) -> Rectification | None:
        """Identity and matched views in one scoring call, and what they say against the student."""
        own = torch.arange(len(batch), device=batch.task.device)
        source, target = own, own
        if self.needs_matches:
            row, slot = (matches.sources >= 0).nonzero(as_tuple=True)
            source, target = torch.cat([own, matches.sources[row, slot]]), torch.cat([own, row])
        scores = teacher.score(batch, source, target)
        identity, matched = scores[: len(batch)], scores[len(batch) :]
        if self.config.auxiliary_loss == "sdar":
            credit.targets = {"teacher": identity}
        if not self.needs_gap:
            return None
        if batch.student_log_probs is None:
            raise ValueError("align_opsd needs batch.student_log_probs: score the responses under their own prompts")
        views = self._rectify(batch.student_log_probs, identity, matched, matches)
        if self.config.auxiliary_loss == "alignment":
            self._gate(batch, views, credit)
        if self.needs_matches:
            credit.trace |= match_trace(matches.sources, matches.similarity, views)
            credit.metrics |= view_metrics(views)
        return views

    def _gate(self, batch: TurnBatch, views: Rectification, credit: Credit) -> None:
        """Targets of the alignment loss, frozen at rollout time."""
        trust = gate(views.rectified_gap, self.config.gate_beta)
        credit.targets = {"teacher": views.rectified, "gate": trust}
        if batch.policy_mask.any():
            trusted = trust[batch.policy_mask]
            credit.metrics["auxiliary/gate_mean"] = float(trusted.mean())
            credit.metrics["auxiliary/gate_active_share"] = float((trusted > 0.5).float().mean())

    def _rectify(
        self, student: torch.Tensor, identity: torch.Tensor, matched: torch.Tensor, matches: Correspondence | None
    ) -> Rectification:
        config = self.config
        none = torch.full((len(student), 1), -1, device=student.device)
        return rectify(
            student,
            identity,
            matched,
            matches.sources if self.needs_matches else none,
            matches.similarity if self.needs_matches else none.float(),
            threshold=config.similarity_threshold,
            temperature=config.aggregation_temperature,
            alpha_max=config.alpha_max,
            aggregation=config.aggregation,
        )

    # Spans

    def _segment(self, batch: TurnBatch, teacher: Teacher, matches: Correspondence, credit: Credit) -> torch.Tensor:
        """``(M,)`` int64 span of each turn, numbered over the batch in (task, rollout) order."""
        threshold = self._threshold(teacher, matches, credit) if self.config.allocation == "span" else None
        shift, counts = matches.shift.tolist(), matches.counts.tolist()
        limits = self.config.min_span, self.config.max_span, self.config.boundary_min
        span, cuts, number = torch.zeros(len(batch), dtype=torch.int64), [], 0
        for index, rows in enumerate(trajectories(batch.task, batch.rollout, batch.turn)):
            local = rows.tolist()
            columns = [shift[row] for row in local], [counts[row] for row in local]
            if self.config.allocation == "span":
                found = segment(*columns, threshold, *limits)
            else:
                found = random_segment(*columns, self.config.random_span_seed + index, *limits)
            lengths = torch.tensor([end - start for start, end in found.spans])
            span[local] = number + torch.repeat_interleave(lengths)
            cuts.append((local, found))
            number += len(found.spans)
        credit.metrics |= span_metrics(cuts)
        credit.trace |= {"divergence": shift, "divergence_counts": counts} | span_trace(len(batch), cuts)
        return span.to(batch.task.device)

    def _threshold(self, teacher: Teacher, matches: Correspondence, credit: Credit) -> float | None:
        """One threshold from the counting divergences of all processes."""
        everywhere = teacher.gather(matches.shift[matches.counts])
        quantile = boundary_quantile(everywhere, self.config.boundary_quantile)
        threshold = clip_threshold(quantile, self.config.boundary_min, self.config.boundary_max)
        if quantile is not None:
            credit.metrics |= {"spans/threshold": threshold, "spans/threshold_unclipped": quantile}
        return threshold

    # Credit

    def _allocate(
        self,
        batch: TurnBatch,
        found: Outcome,
        views: Rectification | None,
        span: torch.Tensor | None,
        credit: Credit,
    ) -> None:
        """Token advantages: A times the weights that the configured allocation gives, plus the residual."""
        mask, advantage = batch.policy_mask, found.advantage
        evidence = None if views is None else self._evidence(batch, found, views, credit)
        if self.config.allocation == "none":
            credit.advantages = token_advantages(advantage, mask, found.residual)
            return
        rollout, _ = number_rows(batch.task, batch.rollout)
        box = density_box(self.config.weighting, self.config.density_cap, self.config.band)
        if self.config.allocation == "token":
            temperature = self.config.credit_temperature
            weight = token_weights(views.rectified_gap, mask, advantage, rollout, temperature, box)
            mean = torch.where(mask, weight, 0.0).sum(-1, dtype=torch.float64) / evidence.tokens
            mean = mean.masked_fill(evidence.tokens == 0, 1.0)
        else:
            mean = self._turn_weights(evidence, rollout, rollout if span is None else span, advantage, box, credit)
            weight = mean[:, None]
        credit.advantages = token_advantages(advantage[:, None] * weight, mask, found.residual)
        credit.trace["weight"] = mean.tolist()
        credit.metrics |= weight_metrics(mean)

    def _evidence(self, batch: TurnBatch, found: Outcome, views: Rectification, credit: Credit) -> Evidence:
        identity = turn_evidence(views.identity_gap, batch.policy_mask, found.advantage)
        evidence = turn_evidence(views.rectified_gap, batch.policy_mask, found.advantage)
        credit.trace |= evidence_trace(identity, evidence)
        credit.metrics |= evidence_metrics(identity, evidence)
        return evidence

    def _turn_weights(
        self,
        evidence: Evidence,
        rollout: torch.Tensor,
        span: torch.Tensor,
        advantage: torch.Tensor,
        box: tuple[float, float],
        credit: Credit,
    ) -> torch.Tensor:
        """``(M,)`` W. One span a rollout is the flat turn allocation."""
        shared = allocate(evidence.evidence, evidence.tokens, rollout, span, self.config.credit_temperature)
        weights = turn_weights(shared.density, evidence.tokens, rollout, advantage, self.config.credit_mixing, box)
        credit.trace |= allocation_trace(shared, weights, span)
        return weights.weight


class Embeddings:
    """Embeddings of several columns of texts; each distinct text is encoded once, an empty one has a zero row.

    Args:
        teacher: encodes.
        columns: M texts each.
        device: where the rows are used.
    """

    def __init__(self, teacher: Teacher, columns: Sequence[Sequence[str]], device: torch.device):
        texts = dict.fromkeys(text for column in columns for text in column if text)
        place = {text: number for number, text in enumerate(texts)}
        self._table = teacher.encode(list(texts)).to(device=device, dtype=torch.float32)
        index = [[place.get(text, -1) for text in column] for column in columns]
        self._index = [torch.tensor(column, dtype=torch.int64, device=device) for column in index]

    def rows(self, column: int, rows: torch.Tensor) -> torch.Tensor:
        """``(len(rows), D)``."""
        return self._at(self._index[column][rows])

    def cosine(self, left: int, right: int, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """``(P,)`` cosine of row ``source[p]`` of one column with row ``target[p]`` of another. Few texts differ among
        the actions of a task, so all distinct pairs cost less than one product a pair."""
        texts, source = self._index[left][source].unique(return_inverse=True)
        others, target = self._index[right][target].unique(return_inverse=True)
        return cosine(self._at(texts), self._at(others))[source, target]

    def _at(self, index: torch.Tensor) -> torch.Tensor:
        found = self._table[index.clamp_min(0)] if len(self._table) else self._table.new_zeros(len(index), 1)
        return found.masked_fill_((index < 0)[:, None], 0.0)

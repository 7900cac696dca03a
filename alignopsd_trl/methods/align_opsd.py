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
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.correspondence import (
    accept_actions,
    cosine,
    eligibility,
    select_sources,
    task_groups,
)
from alignopsd_trl.credit import (
    Allocation,
    Evidence,
    Weights,
    allocate,
    density_box,
    number_rows,
    token_advantages,
    token_weights,
    turn_evidence,
    turn_weights,
)
from alignopsd_trl.methods.base import Coefficients, Credit, Method, Teacher, register
from alignopsd_trl.methods.grpo import Outcome, outcome
from alignopsd_trl.rectification import Rectification, gate, gated_loss, rectify
from alignopsd_trl.spans import (
    Segmentation,
    adjacent_divergence,
    boundary_quantile,
    clip_threshold,
    profiles,
    random_segment,
    segment,
    trajectories,
)
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


@dataclass
class Spans:
    """Attributes:
    span: ``(M,)`` int64 numbered over the batch.
    cuts: one segmentation a rollout, in (task, rollout) order, with the rollout's rows.
    metrics: scalars for the log.
    """

    span: torch.Tensor
    cuts: list[tuple[torch.Tensor, Segmentation]]
    metrics: dict[str, float]


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
            credit = Credit(batch.policy_mask.float(), dict(found.metrics), trace=_outcome_trace(found))
            matches = self._correspond(batch, teacher, credit) if self.needs_encoder else None
            views = self._score(batch, teacher, matches, credit) if self.needs_scores else None
            spans = self._segment(batch, teacher, matches, credit) if self.needs_profiles else None
            self._allocate(batch, found, views, spans, credit)
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
        empty = torch.full((len(batch), self.config.top_k), -1, device=batch.task.device)
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
        if self.needs_matches and len(batch):
            credit.metrics |= _match_metrics(batch, found)
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
            sources = select_sources(similarity, eligible, rollout, config.similarity_threshold, config.top_k)
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
            trust = gate(views.rectified_gap, self.config.gate_beta)
            credit.targets = {"teacher": views.rectified, "gate": trust}
            if batch.policy_mask.any():
                trusted = trust[batch.policy_mask]
                credit.metrics["auxiliary/gate_mean"] = float(trusted.mean())
                credit.metrics["auxiliary/gate_active_share"] = float((trusted > 0.5).float().mean())
        if self.needs_matches:
            credit.trace |= _match_trace(matches, views)
            if len(batch):
                credit.metrics["rectification/confidence_mean"] = float(views.rho.mean())
                credit.metrics["rectification/alpha_mean"] = float(views.alpha.mean())
        return views

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

    def _segment(self, batch: TurnBatch, teacher: Teacher, matches: Correspondence, credit: Credit) -> Spans:
        config, metrics, threshold = self.config, {}, None
        if config.allocation == "span":
            everywhere = teacher.gather(matches.shift[matches.counts])
            quantile = boundary_quantile(everywhere, config.boundary_quantile)
            threshold = clip_threshold(quantile, config.boundary_min, config.boundary_max)
            if quantile is not None:
                metrics = {"spans/threshold": threshold, "spans/threshold_unclipped": quantile}
        shift, counts = matches.shift.tolist(), matches.counts.tolist()
        limits = config.min_span, config.max_span, config.boundary_min
        span, cuts, number = torch.zeros(len(batch), dtype=torch.int64), [], 0
        for index, rows in enumerate(trajectories(batch.task, batch.rollout, batch.turn)):
            local = rows.tolist()
            columns = [shift[row] for row in local], [counts[row] for row in local]
            if config.allocation == "span":
                found = segment(*columns, threshold, *limits)
            else:
                found = random_segment(*columns, config.random_span_seed + index, *limits)
            length = torch.tensor([end - start for start, end in found.spans])
            span[local] = number + torch.repeat_interleave(length)
            cuts.append((rows, found))
            number += len(found.spans)
        spans = Spans(span.to(batch.task.device), cuts, metrics | _span_metrics(cuts))
        credit.metrics |= spans.metrics
        credit.trace |= _span_trace(matches, spans)
        return spans

    # Credit

    def _allocate(
        self,
        batch: TurnBatch,
        found: Outcome,
        views: Rectification | None,
        spans: Spans | None,
        credit: Credit,
    ) -> None:
        """Turns gaps and spans into token advantages, metrics and trace."""
        config, mask, advantage = self.config, batch.policy_mask, found.advantage
        evidence = None if views is None else turn_evidence(views.rectified_gap, mask, advantage)
        if evidence is not None:
            identity = turn_evidence(views.identity_gap, mask, advantage)
            credit.trace |= _evidence_trace(identity, evidence)
            credit.metrics |= _evidence_metrics(identity, evidence)
        box = density_box(config.weighting, config.density_cap, config.band)
        rollout, _ = number_rows(batch.task, batch.rollout)
        if config.allocation == "none":
            credit.advantages = token_advantages(advantage, mask, found.residual)
            return
        if config.allocation == "token":
            weight = token_weights(views.rectified_gap, mask, advantage, rollout, config.credit_temperature, box)
            turn_mean = torch.where(mask, weight, 0.0).sum(-1) / evidence.tokens.clamp_min(1.0)
            mean = torch.where(evidence.tokens > 0, turn_mean.double(), 1.0)
            credit.advantages = token_advantages(advantage[:, None] * weight, mask, found.residual)
        else:
            span = rollout if spans is None else spans.span
            shared = allocate(evidence.evidence, evidence.tokens, rollout, span, config.credit_temperature)
            weights = turn_weights(shared.density, evidence.tokens, rollout, advantage, config.credit_mixing, box)
            mean = weights.weight
            credit.advantages = token_advantages(advantage * mean, mask, found.residual)
            credit.trace |= _allocation_trace(shared, weights, span)
        credit.trace["weight"] = mean.tolist()
        if len(batch):
            credit.metrics["credit/weight_std"] = float(mean.std(correction=0))
            credit.metrics["credit/weight_max"] = float(mean.max())


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
        self._index = [torch.tensor([place.get(text, -1) for text in column], device=device) for column in columns]

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


# Metrics and trace


def _match_metrics(batch: TurnBatch, found: Correspondence) -> dict[str, float]:
    per_target = (found.sources >= 0).sum(-1)
    target, slot = (found.sources >= 0).nonzero(as_tuple=True)
    pairs = len(target)
    metrics = {
        "correspondence/matched_share": float((per_target > 0).double().mean()),
        "correspondence/sources_per_target": float(per_target.double().mean()),
    }
    if pairs:
        off_turn = batch.turn[found.sources[target, slot]] != batch.turn[target]
        metrics["correspondence/off_turn_share"] = float(off_turn.double().mean())
        metrics["correspondence/similarity_mean"] = float(found.similarity[target, slot].mean())
    if pairs + found.rejected:
        metrics["correspondence/action_rejected_share"] = found.rejected / (pairs + found.rejected)
    return metrics


def _span_metrics(cuts: Sequence[tuple[torch.Tensor, Segmentation]]) -> dict[str, float]:
    if not cuts:
        return {}
    turns, spans = sum(len(rows) for rows, _ in cuts), sum(len(found.spans) for _, found in cuts)
    return {
        "spans/length_mean": turns / spans,
        "spans/per_rollout": spans / len(cuts),
        "spans/guided_cuts_per_rollout": sum(len(found.guided) for _, found in cuts) / len(cuts),
        "spans/forced_cuts_per_rollout": sum(len(found.forced) for _, found in cuts) / len(cuts),
    }


def _evidence_metrics(identity: Evidence, rectified: Evidence) -> dict[str, float]:
    total = rectified.tokens.sum()
    if not total:
        return {}
    return {
        "rectification/identity_gap_mean": float((identity.gap * identity.tokens).sum() / total),
        "rectification/rectified_gap_mean": float((rectified.gap * rectified.tokens).sum() / total),
        "credit/evidence_mean": float(rectified.evidence.mean()),
        "credit/evidence_std": float(rectified.evidence.std(correction=0)),
    }


def _outcome_trace(found: Outcome) -> dict[str, Any]:
    trace = {"row": list(range(len(found.advantage))), "advantage": found.advantage.tolist()}
    return trace if found.residual is None else trace | {"residual": found.residual.tolist()}


def _match_trace(matches: Correspondence, views: Rectification) -> dict[str, Any]:
    keep = [[slot for slot, source in enumerate(row) if source >= 0] for row in matches.sources.tolist()]

    def picked(table: torch.Tensor) -> list[list[Any]]:
        return [[row[slot] for slot in slots] for row, slots in zip(table.tolist(), keep, strict=True)]

    return {
        "sources": picked(matches.sources),
        "source_similarities": picked(matches.similarity),
        "source_weights": picked(views.weights),
        "rho": views.rho.tolist(),
        "alpha": views.alpha.tolist(),
    }


def _span_trace(matches: Correspondence, spans: Spans) -> dict[str, Any]:
    place, cut = [0] * len(spans.span), [""] * len(spans.span)
    for rows, found in spans.cuts:
        local = rows.tolist()
        for number, (start, end) in enumerate(found.spans):
            for row in local[start:end]:
                place[row] = number
        for kind in ("threshold", "drawn", "guided", "forced"):
            for position in getattr(found, kind):
                cut[local[position]] = kind
    return {
        "divergence": matches.shift.tolist(),
        "divergence_counts": matches.counts.tolist(),
        "span": place,
        "cut": cut,
    }


def _evidence_trace(identity: Evidence, rectified: Evidence) -> dict[str, Any]:
    return {
        "tokens": rectified.tokens.long().tolist(),
        "identity_gap": identity.gap.tolist(),
        "rectified_gap": rectified.gap.tolist(),
        "evidence": rectified.evidence.tolist(),
    }


def _allocation_trace(shared: Allocation, weights: Weights, span: torch.Tensor) -> dict[str, Any]:
    return {
        "span_budget": shared.budget[span].tolist(),
        "turn_share": shared.share.tolist(),
        "density": shared.density.tolist(),
        "projected_density": weights.projected.tolist(),
    }

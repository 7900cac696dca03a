"""Metrics of a batch's credit for the log, and columns for the records with one value a turn.

`report` collects the results of all stages. A metric without values to average is left out. Columns are lists of
length M. ``sources`` holds row numbers of the same batch, which the column ``row`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.align_opsd.credit import TurnWeights
from alignopsd_trl.methods.align_opsd.rectification import gate
from alignopsd_trl.methods.align_opsd.spans import CutSpans
from alignopsd_trl.methods.baseline import token_gaps

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.correspondence import Correspondence
    from alignopsd_trl.methods.align_opsd.credit import Evidence
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
    from alignopsd_trl.methods.align_opsd.rectification import Rectification
    from alignopsd_trl.methods.align_opsd.stages import Stages
    from alignopsd_trl.turns import TurnBatch


def report(options: AlignOPSDOptions, batch: TurnBatch, stages: Stages) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and trace of one `AlignOPSD.assign`. A stage that the config leaves out has none."""
    matches, views, spans, weights = stages.matches, stages.views, stages.spans, stages.weights
    metrics, trace = dict(stages.outcome.metrics), dict(stages.outcome.trace)
    matched, cut = matches.sources.size(1) > 0, isinstance(spans, CutSpans)
    if matched or cut:
        metrics |= thought_metrics(spans.matches.compared)
        trace |= thought_trace(matches.compared, spans.matches)
    if matched:
        metrics |= match_metrics(matches, batch.turn) | view_metrics(views, matches.compared)
        trace |= match_trace(matches, views)
    trace |= token_gaps(batch, identity=views.identity_gap, rectified=views.rectified_gap)
    if options.auxiliary_loss == "alignment":
        metrics |= gate_metrics(views, batch.policy_mask, options.gate_beta)
    if isinstance(spans, CutSpans):
        metrics |= span_metrics(spans)
        trace |= span_trace(spans)
    metrics |= evidence_metrics(weights.identity, weights.rectified, batch.scored)
    trace |= evidence_trace(weights.identity, weights.rectified, batch.scored)
    if options.allocation != "none":
        metrics |= weight_metrics(weights.weight)
        trace["weight"] = weights.weight.tolist()
    if isinstance(weights, TurnWeights):
        columns = turn_trace(weights)
        trace |= {name: _where(spans.matches.compared, column) for name, column in columns.items()} if cut else columns
        if options.credit_spread is not None and metrics.get("credit/weight_std", 0.0) > 1e-9:  # else any T would do
            metrics["credit/temperature"] = weights.temperature
    return metrics, trace


def thought_metrics(compared: torch.Tensor) -> dict[str, float]:
    return {"teacher/thought_share": float(compared.double().mean())} if len(compared) else {}


def thought_trace(acted: torch.Tensor, matches: Correspondence) -> dict[str, Any]:
    """Reasoning traces and actions of the privileged view; ``acted`` ``(M,)`` bool, where actions were generated."""
    return {
        "teacher_thinking": _where(matches.compared, [thought.thinking for thought in matches.thoughts]),
        "teacher_action": _where(acted, [thought.action for thought in matches.thoughts]),
    }


def _where(compared: torch.Tensor, values: list[Any]) -> list[Any]:
    """The values, and `None` for turns outside of the compared groups."""
    return [value if one else None for value, one in zip(values, compared.tolist(), strict=True)]


def match_metrics(matches: Correspondence, turn: torch.Tensor) -> dict[str, float]:
    """How many turns have sources at the same decision, and how often at another turn number ``turn`` ``(M,)``."""
    metrics, sources, rejected, present = {}, matches.sources, matches.rejected, matches.sources >= 0
    target, slot = present.nonzero(as_tuple=True)
    if matches.compared.any():
        metrics["correspondence/matched_share"] = float(present[matches.compared].any(-1).double().mean())
        metrics["correspondence/sources_per_target"] = float(present[matches.compared].sum(-1).double().mean())
    if len(target):
        off_turn = turn[sources[target, slot]] != turn[target]
        metrics["correspondence/off_turn_share"] = float(off_turn.double().mean())
        metrics["correspondence/similarity_mean"] = float(matches.similarity[target, slot].mean())
    if len(target) + rejected:
        metrics["correspondence/action_rejected_share"] = rejected / (len(target) + rejected)
    return metrics


def match_trace(matches: Correspondence, views: Rectification) -> dict[str, Any]:
    keep = [[slot for slot, source in enumerate(row) if source >= 0] for row in matches.sources.tolist()]

    def picked(table: torch.Tensor) -> list[list[Any]]:
        return [[row[slot] for slot in slots] for row, slots in zip(table.tolist(), keep, strict=True)]

    return {
        "sources": picked(matches.sources),
        "source_similarities": picked(matches.similarity),
        "source_weights": picked(views.weights),
        "rho": _where(matches.compared, views.rho.tolist()),
        "alpha": _where(matches.compared, views.alpha.tolist()),
    }


def view_metrics(views: Rectification, compared: torch.Tensor) -> dict[str, float]:
    if not compared.any():
        return {}
    return {
        "rectification/confidence_mean": float(views.rho[compared].mean()),
        "rectification/alpha_mean": float(views.alpha[compared].mean()),
    }


def gate_metrics(views: Rectification, mask: torch.Tensor, beta: float) -> dict[str, float]:
    """How far the auxiliary loss trusts the rectified teacher, over the optimised tokens."""
    if not mask.any():
        return {}
    trusted = gate(views.rectified_gap[mask], beta)
    return {
        "auxiliary/gate_mean": float(trusted.mean()),
        "auxiliary/gate_active_share": float((trusted > 0.5).float().mean()),
    }


def span_metrics(spans: CutSpans) -> dict[str, float]:
    metrics = {"spans/threshold": spans.threshold, "spans/threshold_unclipped": spans.quantile}
    metrics = {name: value for name, value in metrics.items() if value is not None}
    cuts = [(rows, found) for rows, found in spans.cuts if spans.matches.compared[rows[0]]]
    if not cuts:
        return metrics
    turns, count = sum(len(rows) for rows, _ in cuts), sum(len(found.spans) for _, found in cuts)
    return metrics | {
        "spans/length_mean": turns / count,
        "spans/per_rollout": count / len(cuts),
        "spans/guided_cuts_per_rollout": sum(len(found.guided) for _, found in cuts) / len(cuts),
        "spans/forced_cuts_per_rollout": sum(len(found.forced) for _, found in cuts) / len(cuts),
    }


def span_trace(spans: CutSpans) -> dict[str, Any]:
    """``span``: number of the turn's span within its rollout. ``cut``: why a span starts at this turn, else empty."""
    turns = len(spans.span)
    span, cut = [0] * turns, [""] * turns
    for rows, found in spans.cuts:
        for number, (start, end) in enumerate(found.spans):
            for row in rows[start:end]:
                span[row] = number
        for kind in ("threshold", "drawn", "guided", "forced"):
            for position in getattr(found, kind):
                cut[rows[position]] = kind
    columns = {"divergence": spans.shifts.value.tolist(), "divergence_counts": spans.shifts.counts.tolist()}
    columns |= {"span": span, "cut": cut}
    return {name: _where(spans.matches.compared, column) for name, column in columns.items()}


def evidence_metrics(identity: Evidence, rectified: Evidence, scored: torch.Tensor | None) -> dict[str, float]:
    """Token means of the two gaps over the scored turns, and mean and standard deviation of the evidence over turns."""
    if not rectified.tokens.sum():
        return {}
    metrics, tokens = {}, rectified.tokens if scored is None else rectified.tokens * scored
    if total := float(tokens.sum()):
        metrics = {
            "rectification/identity_gap_mean": float((identity.gap * tokens).sum()) / total,
            "rectification/rectified_gap_mean": float((rectified.gap * tokens).sum()) / total,
        }
    return metrics | {
        "credit/evidence_mean": float(rectified.evidence.mean()),
        "credit/evidence_std": float(rectified.evidence.std(correction=0)),
    }


def evidence_trace(identity: Evidence, rectified: Evidence, scored: torch.Tensor | None) -> dict[str, Any]:
    """Gaps are NaN where a turn was not scored; its evidence is 0 by the sign of its advantage."""

    def gap(evidence: Evidence) -> list[float]:
        return (evidence.gap if scored is None else evidence.gap.masked_fill(~scored, torch.nan)).tolist()

    return {
        "tokens": rectified.tokens.long().tolist(),
        "identity_gap": gap(identity),
        "rectified_gap": gap(rectified),
        "evidence": rectified.evidence.tolist(),
    }


def weight_metrics(weight: torch.Tensor) -> dict[str, float]:
    if not len(weight):
        return {}
    return {"credit/weight_std": float(weight.std(correction=0)), "credit/weight_max": float(weight.max())}


def turn_trace(weights: TurnWeights) -> dict[str, Any]:
    return {
        "span_budget": weights.allocation.budget[weights.span].tolist(),
        "turn_share": weights.allocation.share.tolist(),
        "density": weights.allocation.density.tolist(),
        "projected_density": weights.projected.tolist(),
    }

"""Metrics of a batch's credit for the log, and columns for the records with one value a turn.

`report` collects the results of all stages. A metric without values to average is left out. Columns are lists of
length M; rows of other turns in them (``sources``) are row numbers of the same batch, which the column ``row`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.align_opsd.rectification import gate
from alignopsd_trl.methods.token_gaps import token_gaps

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.correspondence import Correspondence
    from alignopsd_trl.methods.align_opsd.credit import CreditWeights, Evidence
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
    from alignopsd_trl.methods.align_opsd.rectification import Rectification
    from alignopsd_trl.methods.align_opsd.spans import Spans
    from alignopsd_trl.methods.align_opsd.thinking import Thinking
    from alignopsd_trl.methods.grpo import OutcomeAdvantage
    from alignopsd_trl.turns import TurnBatch


def report(
    options: AlignOPSDOptions,
    batch: TurnBatch,
    result: OutcomeAdvantage,
    thinking: Thinking | None,
    matches: Correspondence | None,
    views: Rectification | None,
    spans: Spans | None,
    weights: CreditWeights | None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and trace of one `AlignOPSD.assign`, from the stages that ran; `None` for those that did not."""
    metrics, trace = dict(result.metrics), dict(result.trace)
    if thinking is not None:
        metrics |= thought_metrics(thinking.asked)
        trace |= thought_trace(thinking)
    if views is not None:
        if matches is not None and matches.sources is not None and matches.similarity is not None:
            metrics |= match_metrics(matches.sources, matches.similarity, matches.rejected, batch.turn, matches.asked)
            metrics |= view_metrics(views, matches.asked)
            trace |= match_trace(matches.sources, matches.similarity, views, matches.asked)
        trace |= token_gaps(batch, identity=views.identity_gap, rectified=views.rectified_gap)
        if options.auxiliary_loss == "alignment":
            metrics |= gate_metrics(views, batch.policy_mask, options.gate_beta)
    if spans is not None and thinking is not None:
        metrics |= span_metrics(spans, thinking.asked)
        trace |= span_trace(spans, thinking.asked)
    if weights is not None:
        metrics |= evidence_metrics(weights.identity, weights.rectified, batch.scored)
        trace |= evidence_trace(weights.identity, weights.rectified, batch.scored)
        metrics |= weight_metrics(weights)
        trace |= weight_trace(weights, thinking.asked if spans is not None and thinking is not None else None)
    return metrics, trace


def thought_metrics(asked: torch.Tensor) -> dict[str, float]:
    return {"teacher/thought_share": float(asked.double().mean())} if len(asked) else {}


def thought_trace(thinking: Thinking) -> dict[str, Any]:
    acted = thinking.asked.clone()
    for task in thinking.tasks:
        acted[task.rows] = False
    return {
        "teacher_thinking": _where(thinking.asked, [thought.thinking for thought in thinking.thoughts]),
        "teacher_action": _where(acted, [thought.action for thought in thinking.thoughts]),
    }


def _where(asked: torch.Tensor, values: list[Any]) -> list[Any]:
    """`None` for a turn that the privileged view was not asked about."""
    return [value if one else None for value, one in zip(values, asked.tolist(), strict=True)]


def match_metrics(
    sources: torch.Tensor, similarity: torch.Tensor, rejected: int, turn: torch.Tensor, asked: torch.Tensor
) -> dict[str, float]:
    """How many turns found siblings at the same decision, and how often at another turn number.

    Args:
        sources, similarity: ``(M, K)``, -1 for no source.
        rejected: pairs that the action filter took away.
        turn: ``(M,)`` turn numbers.
        asked: ``(M,)`` bool, turns that could have any.
    """
    metrics, present = {}, sources >= 0
    target, slot = present.nonzero(as_tuple=True)
    if asked.any():
        metrics["correspondence/matched_share"] = float(present[asked].any(-1).double().mean())
        metrics["correspondence/sources_per_target"] = float(present[asked].sum(-1).double().mean())
    if len(target):
        off_turn = turn[sources[target, slot]] != turn[target]
        metrics["correspondence/off_turn_share"] = float(off_turn.double().mean())
        metrics["correspondence/similarity_mean"] = float(similarity[target, slot].mean())
    if len(target) + rejected:
        metrics["correspondence/action_rejected_share"] = rejected / (len(target) + rejected)
    return metrics


def match_trace(
    sources: torch.Tensor, similarity: torch.Tensor, views: Rectification, asked: torch.Tensor
) -> dict[str, Any]:
    keep = [[slot for slot, source in enumerate(row) if source >= 0] for row in sources.tolist()]

    def picked(table: torch.Tensor) -> list[list[Any]]:
        return [[row[slot] for slot in slots] for row, slots in zip(table.tolist(), keep, strict=True)]

    return {
        "sources": picked(sources),
        "source_similarities": picked(similarity),
        "source_weights": picked(views.weights),
        "rho": _where(asked, views.rho.tolist()),
        "alpha": _where(asked, views.alpha.tolist()),
    }


def view_metrics(views: Rectification, asked: torch.Tensor) -> dict[str, float]:
    if not asked.any():
        return {}
    return {
        "rectification/confidence_mean": float(views.rho[asked].mean()),
        "rectification/alpha_mean": float(views.alpha[asked].mean()),
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


def span_metrics(spans: Spans, asked: torch.Tensor) -> dict[str, float]:
    metrics = {"spans/threshold": spans.threshold, "spans/threshold_unclipped": spans.quantile}
    metrics = {name: value for name, value in metrics.items() if value is not None}
    cuts = [(rows, found) for rows, found in spans.cuts if asked[rows[0]]]
    if not cuts:
        return metrics
    turns, count = sum(len(rows) for rows, _ in cuts), sum(len(found.spans) for _, found in cuts)
    return metrics | {
        "spans/length_mean": turns / count,
        "spans/per_rollout": count / len(cuts),
        "spans/guided_cuts_per_rollout": sum(len(found.guided) for _, found in cuts) / len(cuts),
        "spans/forced_cuts_per_rollout": sum(len(found.forced) for _, found in cuts) / len(cuts),
    }


def span_trace(spans: Spans, asked: torch.Tensor) -> dict[str, Any]:
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
    return {name: _where(asked, column) for name, column in (columns | {"span": span, "cut": cut}).items()}


def evidence_metrics(identity: Evidence, rectified: Evidence, scored: torch.Tensor | None) -> dict[str, float]:
    """Token means of the two gaps over the turns that were scored, and the spread of the evidence over turns."""
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


def weight_metrics(weights: CreditWeights) -> dict[str, float]:
    weight = weights.weight
    if weight is None or not len(weight):
        return {}
    metrics = {"credit/weight_std": float(weight.std(correction=0)), "credit/weight_max": float(weight.max())}
    temperature = None if weights.turns is None else weights.turns.temperature
    if temperature is not None and metrics["credit/weight_std"] > 1e-9:  # else any T would have done
        metrics["credit/temperature"] = temperature
    return metrics


def weight_trace(weights: CreditWeights, asked: torch.Tensor | None) -> dict[str, Any]:
    """Turns that the privileged view was not asked about have W = 1 and, with spans, no B, Q and density."""
    trace: dict[str, Any] = {}
    if (turns := weights.turns) is not None:
        trace = {
            "span_budget": turns.allocation.budget[turns.span].tolist(),
            "turn_share": turns.allocation.share.tolist(),
            "density": turns.allocation.density.tolist(),
            "projected_density": turns.weights.projected.tolist(),
        }
    if asked is not None:
        trace = {name: _where(asked, column) for name, column in trace.items()}
    return trace if weights.weight is None else trace | {"weight": weights.weight.tolist()}

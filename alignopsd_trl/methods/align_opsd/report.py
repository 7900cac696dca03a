"""What a batch's credit looked like: scalars for the log, and per-turn columns for the records.

Metrics leave out what has nothing to average over. Columns are lists of length M; rows of other turns in them
(``sources``) are row numbers of the same batch, which the column ``row`` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from alignopsd_trl.methods.align_opsd.credit import Allocation, Evidence, Weights
from alignopsd_trl.methods.align_opsd.rectification import Rectification
from alignopsd_trl.methods.align_opsd.spans import Segmentation

Cuts = Sequence[tuple[list[int], Segmentation]]  # the rows of each rollout and where it was cut


def match_metrics(
    sources: torch.Tensor, similarity: torch.Tensor, rejected: int, turn: torch.Tensor
) -> dict[str, float]:
    """How many turns found siblings at the same decision, and how often at another turn number.

    Args:
        sources, similarity: ``(M, K)``, -1 for no source.
        rejected: pairs that the action filter took away.
        turn: ``(M,)`` turn numbers.
    """
    metrics, present = {}, sources >= 0
    target, slot = present.nonzero(as_tuple=True)
    if len(sources):
        metrics["correspondence/matched_share"] = float(present.any(-1).double().mean())
        metrics["correspondence/sources_per_target"] = float(present.sum(-1).double().mean())
    if len(target):
        off_turn = turn[sources[target, slot]] != turn[target]
        metrics["correspondence/off_turn_share"] = float(off_turn.double().mean())
        metrics["correspondence/similarity_mean"] = float(similarity[target, slot].mean())
    if len(target) + rejected:
        metrics["correspondence/action_rejected_share"] = rejected / (len(target) + rejected)
    return metrics


def match_trace(sources: torch.Tensor, similarity: torch.Tensor, views: Rectification) -> dict[str, Any]:
    keep = [[slot for slot, source in enumerate(row) if source >= 0] for row in sources.tolist()]

    def picked(table: torch.Tensor) -> list[list[Any]]:
        return [[row[slot] for slot in slots] for row, slots in zip(table.tolist(), keep, strict=True)]

    return {
        "sources": picked(sources),
        "source_similarities": picked(similarity),
        "source_weights": picked(views.weights),
        "rho": views.rho.tolist(),
        "alpha": views.alpha.tolist(),
    }


def view_metrics(views: Rectification) -> dict[str, float]:
    if not len(views.rho):
        return {}
    return {
        "rectification/confidence_mean": float(views.rho.mean()),
        "rectification/alpha_mean": float(views.alpha.mean()),
    }


def span_metrics(cuts: Cuts) -> dict[str, float]:
    if not cuts:
        return {}
    turns, spans = sum(len(rows) for rows, _ in cuts), sum(len(found.spans) for _, found in cuts)
    return {
        "spans/length_mean": turns / spans,
        "spans/per_rollout": spans / len(cuts),
        "spans/guided_cuts_per_rollout": sum(len(found.guided) for _, found in cuts) / len(cuts),
        "spans/forced_cuts_per_rollout": sum(len(found.forced) for _, found in cuts) / len(cuts),
    }


def span_trace(turns: int, cuts: Cuts) -> dict[str, Any]:
    """``span``: number of the turn's span within its rollout. ``cut``: why a span starts at this turn, else empty."""
    span, cut = [0] * turns, [""] * turns
    for rows, found in cuts:
        for number, (start, end) in enumerate(found.spans):
            for row in rows[start:end]:
                span[row] = number
        for kind in ("threshold", "drawn", "guided", "forced"):
            for position in getattr(found, kind):
                cut[rows[position]] = kind
    return {"span": span, "cut": cut}


def evidence_metrics(identity: Evidence, rectified: Evidence) -> dict[str, float]:
    """Token means of the two gaps, and the spread of the evidence over turns."""
    total = rectified.tokens.sum()
    if not total:
        return {}
    return {
        "rectification/identity_gap_mean": float((identity.gap * identity.tokens).sum() / total),
        "rectification/rectified_gap_mean": float((rectified.gap * rectified.tokens).sum() / total),
        "credit/evidence_mean": float(rectified.evidence.mean()),
        "credit/evidence_std": float(rectified.evidence.std(correction=0)),
    }


def evidence_trace(identity: Evidence, rectified: Evidence) -> dict[str, Any]:
    return {
        "tokens": rectified.tokens.long().tolist(),
        "identity_gap": identity.gap.tolist(),
        "rectified_gap": rectified.gap.tolist(),
        "evidence": rectified.evidence.tolist(),
    }


def allocation_trace(shared: Allocation, weights: Weights, span: torch.Tensor) -> dict[str, Any]:
    return {
        "span_budget": shared.budget[span].tolist(),
        "turn_share": shared.share.tolist(),
        "density": shared.density.tolist(),
        "projected_density": weights.projected.tolist(),
    }


def weight_metrics(weight: torch.Tensor) -> dict[str, float]:
    if not len(weight):
        return {}
    return {"credit/weight_std": float(weight.std(correction=0)), "credit/weight_max": float(weight.max())}

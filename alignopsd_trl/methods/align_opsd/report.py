"""Metrics of a batch's credit for the log, and columns for the records with one value a turn.

`report` collects the results of all stages. A metric without values to average is left out. Columns are lists of
length M. ``sources`` holds row numbers of the same batch, which the column ``row`` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.align_opsd.credit import TurnWeights
from alignopsd_trl.methods.align_opsd.spans import CutSpans
from alignopsd_trl.methods.baseline import token_gaps
from alignopsd_trl.methods.objectives import gate

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.correspondence import Correspondence
    from alignopsd_trl.methods.align_opsd.credit import CreditWeights, Evidence
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
    from alignopsd_trl.methods.align_opsd.rectification import Rectification
    from alignopsd_trl.methods.align_opsd.spans import Spans
    from alignopsd_trl.methods.grpo import OutcomeAdvantage
    from alignopsd_trl.turns import TurnBatch

Report = tuple[dict[str, float], dict[str, Any]]
"""Metrics, and columns of the records."""


@dataclass(frozen=True)
class Stages:
    """What `AlignOPSD.assign` computed of a batch; auxiliary losses read it too.

    Args:
        outcome: A and residuals.
        matches: H and Psi of the groups that were compared for matches.
        identity: ``(M, L)`` log-probs under each turn's own privileged view.
        views: the rectified views and gaps.
        weights: E, B, Q and W.
    """

    outcome: OutcomeAdvantage
    matches: Correspondence
    identity: torch.Tensor
    views: Rectification
    spans: Spans
    weights: CreditWeights


def report(options: AlignOPSDOptions, batch: TurnBatch, stages: Stages) -> Report:
    """Metrics and trace of one `AlignOPSD.assign`. A stage that the config leaves out has none."""
    matches, views, spans, weights = stages.matches, stages.views, stages.spans, stages.weights
    matched, cut = matches.sources.size(1) > 0, isinstance(spans, CutSpans)
    parts = [(stages.outcome.metrics, stages.outcome.trace)]
    if matched or cut:
        thoughts, shown = spans.matches.thoughts, spans.matches.compared
        columns = {"teacher_thinking": _where(shown, [thought.thinking for thought in thoughts])}
        columns["teacher_action"] = _where(matches.compared, [thought.action for thought in thoughts])
        parts.append((_mean("teacher/thought_share", shown.double()), columns))
    if matched:
        parts.append(_of_matches(matches, views, batch.turn))
    if isinstance(spans, CutSpans):
        parts.append(_of_spans(spans))
    parts.append(_of_evidence(weights.identity, weights.rectified, batch.scored))
    metrics = {name: value for part, _ in parts for name, value in part.items()}
    trace = {name: column for _, part in parts for name, column in part.items()}
    trace |= token_gaps(batch, identity=views.identity_gap, rectified=views.rectified_gap)
    if options.auxiliary_loss == "alignment":  # how far the loss trusts the teacher, over the optimised tokens
        trust = gate(views.rectified_gap[batch.policy_mask], options.gate_beta)
        metrics |= _mean("auxiliary/gate_mean", trust) | _mean("auxiliary/gate_active_share", (trust > 0.5).float())
    if options.allocation != "none":
        trace["weight"] = weights.weight.tolist()
        if len(batch):
            metrics["credit/weight_std"] = float(weights.weight.std(correction=0))
            metrics["credit/weight_max"] = float(weights.weight.max())
    if isinstance(weights, TurnWeights):
        columns = {
            "span_budget": weights.allocation.budget[weights.span].tolist(),
            "turn_share": weights.allocation.share.tolist(),
            "density": weights.allocation.density.tolist(),
            "projected_density": weights.projected.tolist(),
        }
        trace |= {name: _where(spans.matches.compared, column) for name, column in columns.items()} if cut else columns
        if options.credit_spread is not None and metrics.get("credit/weight_std", 0.0) > 1e-9:  # else any T would do
            metrics["credit/temperature"] = weights.temperature
    return metrics, trace


def _mean(name: str, values: torch.Tensor) -> dict[str, float]:
    return {name: float(values.mean())} if len(values) else {}


def _where(compared: torch.Tensor, values: list[Any]) -> list[Any]:
    """The values, and `None` for turns outside of the compared groups."""
    return [value if one else None for value, one in zip(values, compared.tolist(), strict=True)]


def _of_matches(matches: Correspondence, views: Rectification, turn: torch.Tensor) -> Report:
    """How many turns have sources at the same decision, and how often at another turn number ``turn`` ``(M,)``."""
    compared, present = matches.compared, matches.sources >= 0
    target, slot = present.nonzero(as_tuple=True)
    off = present & (turn[matches.sources] != turn[:, None])
    metrics = {
        **_mean("correspondence/matched_share", present[compared].any(-1).double()),
        **_mean("correspondence/sources_per_target", present[compared].sum(-1).double()),
        **_mean("correspondence/off_turn_share", off[present].double()),
        **_mean("correspondence/off_turn_weight", (views.weights * off).sum(-1)[present.any(-1)]),  # the paper's
        **_mean("correspondence/similarity_mean", matches.similarity[target, slot]),
        **_mean("rectification/confidence_mean", views.rho[compared]),
        **_mean("rectification/alpha_mean", views.alpha[compared]),
    }
    if tried := len(target) + matches.rejected:
        metrics["correspondence/action_rejected_share"] = matches.rejected / tried
    keep = [[slot for slot, source in enumerate(row) if source >= 0] for row in matches.sources.tolist()]

    def picked(table: torch.Tensor) -> list[list[Any]]:
        return [[row[slot] for slot in slots] for row, slots in zip(table.tolist(), keep, strict=True)]

    return metrics, {
        "sources": picked(matches.sources),
        "source_similarities": picked(matches.similarity),
        "source_weights": picked(views.weights),
        "rho": _where(compared, views.rho.tolist()),
        "alpha": _where(compared, views.alpha.tolist()),
    }


def _of_spans(spans: CutSpans) -> Report:
    """Column ``span``: number of the turn's span within its rollout. ``cut``: why a span starts at this turn, else
    empty."""
    metrics = {"spans/threshold": spans.threshold, "spans/threshold_unclipped": spans.quantile}
    metrics = {name: value for name, value in metrics.items() if value is not None}
    cuts = [(rows, found) for rows, found in spans.cuts if spans.matches.compared[rows[0]]]
    if cuts:
        count = sum(len(found.spans) for _, found in cuts)
        metrics |= {
            "spans/length_mean": sum(len(rows) for rows, _ in cuts) / count,
            "spans/per_rollout": count / len(cuts),
            "spans/guided_cuts_per_rollout": sum(len(found.guided) for _, found in cuts) / len(cuts),
            "spans/forced_cuts_per_rollout": sum(len(found.forced) for _, found in cuts) / len(cuts),
        }
    span, cut = [0] * len(spans.span), [""] * len(spans.span)
    for rows, found in spans.cuts:
        for number, (start, end) in enumerate(found.spans):
            for row in rows[start:end]:
                span[row] = number
        for kind in ("threshold", "drawn", "guided", "forced"):
            for position in getattr(found, kind):
                cut[rows[position]] = kind
    columns = {"divergence": spans.divergence.tolist(), "divergence_counts": spans.counts.tolist()}
    columns |= {"span": span, "cut": cut}
    return metrics, {name: _where(spans.matches.compared, column) for name, column in columns.items()}


def _of_evidence(identity: Evidence, rectified: Evidence, scored: torch.Tensor | None) -> Report:
    """Token means of the two gaps over the scored turns, and mean and standard deviation of the evidence over turns.
    In the records gaps are NaN where a turn was not scored; its evidence is 0 by the sign of its advantage."""
    scored = torch.ones_like(rectified.tokens, dtype=torch.bool) if scored is None else scored
    metrics, tokens = {}, rectified.tokens * scored
    if total := float(tokens.sum()):
        metrics["rectification/identity_gap_mean"] = float((identity.gap * tokens).sum()) / total
        metrics["rectification/rectified_gap_mean"] = float((rectified.gap * tokens).sum()) / total
    if rectified.tokens.any():
        metrics["credit/evidence_mean"] = float(rectified.evidence.mean())
        metrics["credit/evidence_std"] = float(rectified.evidence.std(correction=0))
    return metrics, {
        "tokens": rectified.tokens.long().tolist(),
        "identity_gap": identity.gap.masked_fill(~scored, torch.nan).tolist(),
        "rectified_gap": rectified.gap.masked_fill(~scored, torch.nan).tolist(),
        "evidence": rectified.evidence.tolist(),
    }

"""Multi-view supervision rectification: scores a turn's tokens under the privileged views of its matched turns.

    sources (M, K), H ──► weights ──► rho, alpha
    matched views (P, L) ──► aligned ──► blend with the identity view ──► rectified gap

Views are kept as the P retained pairs, target by target and best first, that is in the order of
``sources[sources >= 0]``. `AlignOPSD.rectify` does this for a batch. None of the outputs carries a gradient.

Sources: the paper's section "Multi-view supervision rectification"; method facts C.18 to C.21, F.51 and F.52.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_BLOCK = 512  # target turns at a time, so that intermediate tensors stay small


@dataclass(frozen=True)
class Rectification:
    """Log-probs of the sampled tokens under the privileged views, and their gaps to the student.

    Args:
        weights: ``(M, K)`` float64 source weights, 0 where there is no source; a matched row sums to 1.
        rho, alpha: ``(M,)`` float64 confidence and rectification coefficient.
        aligned, rectified: ``(M, L)`` log-probs of the matched mixture and of the blend.
        identity_gap, rectified_gap: ``(M, L)``, the identity view and the blend against the student.
    """

    weights: torch.Tensor
    rho: torch.Tensor
    alpha: torch.Tensor
    aligned: torch.Tensor
    rectified: torch.Tensor
    identity_gap: torch.Tensor
    rectified_gap: torch.Tensor


# Formulas


def aligned_log_probs(
    identity: torch.Tensor, matched: torch.Tensor, sources: torch.Tensor, weights: torch.Tensor, aggregation: str
) -> torch.Tensor:
    """Computes log-probs ``(M, L)`` of the mixture of each turn's matched views, token by token. A turn without matched
    views keeps its identity view.

    Args:
        identity: ``(M, L)`` log-probs under the turn's own privileged prompt.
        matched: ``(P, L)``, one row for each pair in the order of ``sources[sources >= 0]``.
        aggregation: ``"probability_mixture"`` for log sum w p (the paper), ``"log_mean"`` for sum w log p.
    """
    present = sources >= 0
    view = (present.flatten().cumsum(0) - 1).view_as(sources).clamp_min(0)
    aligned = identity.clone()
    for hit in present.any(-1).nonzero().squeeze(-1).split(_BLOCK):
        aligned[hit] = mix_views(matched[view[hit]], weights[hit], aggregation).to(identity.dtype)
    return aligned


def mix_views(views: torch.Tensor, weights: torch.Tensor, aggregation: str) -> torch.Tensor:
    """Mixes the log-probs of K views, ``(n, K, ...)``, with weights ``(n, K)``, to ``(n, ...)``: as probabilities for
    ``"probability_mixture"``, else as log-probs."""
    weight = weights.to(views.dtype)[..., None]
    if aggregation == "probability_mixture":
        return (views + weight.log()).logsumexp(1)
    return torch.where(weight > 0, views * weight, 0.0).sum(1)


def _blend(identity: torch.Tensor, aligned: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """(1 - alpha) * identity + alpha * aligned in log space; rows of alpha 0 stay the identity bit for bit."""
    rectified = identity.clone()
    for rows in (alpha > 0).nonzero().squeeze(-1).split(_BLOCK):
        share = alpha[rows].to(identity.dtype)[:, None]
        rectified[rows] = (1.0 - share) * identity[rows] + share * aligned[rows]
    return rectified


@dataclass(frozen=True)
class Mixture:
    """The rectified teacher's whole distribution: identity and matched views, mixed as the rectified gap is.

    Args:
        sources: ``(M, K)`` int64, the turns whose views count beside the turn's own; -1 behind them.
        weights: ``(M, K)`` float64 of these sources.
        alpha: ``(M,)`` float64.
        temperature: divides the logits of all views before they are mixed.
    """

    sources: torch.Tensor
    weights: torch.Tensor
    alpha: torch.Tensor
    aggregation: str
    temperature: float

    @classmethod
    def of(cls, sources: torch.Tensor, views: Rectification, aggregation: str, temperature: float) -> Mixture:
        """Leaves out the sources of turns whose confidence is 0, which keep their identity view."""
        counts = (sources >= 0) & (views.alpha > 0)[:, None]
        order = (~counts).to(torch.int8).argsort(dim=1, stable=True)
        sources = sources.masked_fill(~counts, -1).gather(1, order)
        return cls(sources, views.weights.gather(1, order), views.alpha, aggregation, temperature)

    def __call__(self, rows: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Computes logits ``(n, V)`` that give the mixture at the temperature.

        Args:
            rows: ``(n,)`` turns.
            logits: ``(n, 1 + k, V)`` of the identity view and of the first k sources of these turns.
        """
        log_probs = (logits.float() / self.temperature).log_softmax(-1)
        identity, matched = log_probs[:, 0], log_probs[:, 1:]
        if not matched.size(1):
            return self.temperature * identity
        aligned = mix_views(matched, self.weights[rows, : matched.size(1)], self.aggregation)
        return self.temperature * _blend(identity, aligned, self.alpha[rows])


@torch.no_grad()
def rectify(
    student: torch.Tensor,
    identity: torch.Tensor,
    matched: torch.Tensor,
    sources: torch.Tensor,
    similarity: torch.Tensor,
    *,
    threshold: float,
    temperature: float,
    alpha_max: float,
    aggregation: str = "probability_mixture",
) -> Rectification:
    """The rectified gap of every token (the paper's equations of M, alpha and the rectified gap).

    The weights of a target's sources are softmax(H / tau), rho is the weighted mean of clip((H - gamma) / (1 - gamma),
    0, 1), and alpha is alpha_max rho. The mixture is in probability space, the blend with the identity view in log
    space. A target without a source, or whose confidence is 0, keeps its identity gap bit for bit.

    Args:
        student, identity: ``(M, L)`` log-probs of the sampled responses under the ordinary prompt and under the
            privileged view of the same turn.
        matched: ``(P, L)`` under the matched privileged views, in the order of ``sources[sources >= 0]``.
        sources, similarity: ``(M, K)``; -1 for no source.
        threshold, temperature, alpha_max, aggregation: gamma_H, tau, alpha_max and how views are mixed.
    """
    present, near = sources >= 0, similarity.detach().double()
    weights = torch.where(present, (near / temperature).masked_fill(~present, -torch.inf).softmax(-1), 0.0)
    # gamma in the precision of H, the one it was selected in: H = gamma is then exactly 0 confidence.
    gamma = similarity.new_tensor(threshold).double()
    rescaled = ((near - gamma) / (1.0 - gamma)).clamp(0.0, 1.0)
    rho = torch.where(weights > 0, weights * rescaled, 0.0).sum(-1)
    alpha = alpha_max * rho
    aligned = aligned_log_probs(identity, matched, sources, weights, aggregation)
    rectified = _blend(identity, aligned, alpha)
    return Rectification(weights, rho, alpha, aligned, rectified, identity - student, rectified - student)

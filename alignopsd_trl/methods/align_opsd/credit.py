"""Hierarchical credit assignment: distributes a rollout's advantage over its turns; the token budget is conserved.

    rewards ──► A ──► evidence E = sgn(A) mean gap ──► B over spans, Q over turns ──► density ──► clip ──► W ──► A W

Everything is vectorised over the batch: ``segment`` arguments number the spans or rollouts that rows belong to.
Turn-level quantities are float64, token-level ones float32, and none carries a gradient.

Sources: the paper's section "Semi-Markov Hierarchical Credit Assignment" and its appendix; method facts E and F.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.grpo import segment_sum
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
    from alignopsd_trl.methods.align_opsd.rectification import Rectification


@dataclass(frozen=True)
class CreditWeights:
    """The weights of a batch's turns and tokens, and the evidence that they come from.

    Args:
        identity, rectified: evidence of the identity gap, for comparison, and of the rectified gap.
        weight: ``(M,)`` float64 W of each turn, the mean over its tokens where they differ.
        by_token: the factor of A at each token, ``(M, 1)`` or ``(M, L)``.
    """

    identity: Evidence
    rectified: Evidence
    weight: torch.Tensor
    by_token: torch.Tensor


@dataclass(frozen=True)
class TurnWeights(CreditWeights):
    """Weights that are equal for all tokens of a turn, and how they were computed.

    Args:
        span: ``(M,)`` int64 span of each turn.
        projected: ``(M,)`` float64 density within the clip range.
    """

    span: torch.Tensor
    allocation: Allocation
    projected: torch.Tensor
    temperature: float


def weigh(
    views: Rectification,
    batch: TurnBatch,
    advantage: torch.Tensor,
    span: torch.Tensor,
    options: AlignOPSDOptions,
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> CreditWeights:
    """Computes E, B, Q and W of a batch by ``options.allocation``.

    Args:
        advantage: ``(M,)`` A.
        span: ``(M,)`` int64 numbered over the batch; one span for each rollout gives the flat turn allocation.
        options: for T or the standard deviation that determines it, eta, the clip range and the allocation.
        gather: ``(n,)`` of this process -> ``(N,)`` of all processes; called only to determine T.
    """
    mask, rollout = batch.policy_mask, batch.groups.rollout
    identity = turn_evidence(views.identity_gap, mask, advantage)
    rectified = turn_evidence(views.rectified_gap, mask, advantage)
    if options.allocation == "none":
        ones = torch.ones_like(rectified.gap)
        return CreditWeights(identity, rectified, ones, ones[:, None])
    tokens, limits = rectified.tokens, density_box(options.weighting, options.density_cap, options.band)
    if options.allocation == "token":
        by_token = token_weights(views.rectified_gap, mask, advantage, rollout, options.credit_temperature, limits)
        mean = torch.where(mask, by_token, 0.0).sum(-1, dtype=torch.float64) / rectified.tokens
        return CreditWeights(identity, rectified, mean.masked_fill(rectified.tokens == 0, 1.0), by_token)

    def at(temperature: float) -> tuple[Allocation, torch.Tensor, torch.Tensor]:
        shares = allocate(rectified.evidence, tokens, rollout, span, temperature)
        return shares, *turn_weights(shares.density, tokens, rollout, advantage, options.credit_mixing, limits)

    def deviation(temperature: float) -> float:
        return weight_std(at(temperature)[1], tokens, advantage, gather)

    temperature, spread = options.credit_temperature, options.credit_spread
    temperature = temperature if spread is None else temperature_of_std(spread, deviation)
    shares, weight, projected = at(temperature)
    return TurnWeights(identity, rectified, weight, weight[:, None], span, shares, projected, temperature)


def span_means(weight: torch.Tensor, tokens: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """Computes the mean ``(M,)`` of W over the tokens of each turn's span. It keeps the token budget, as W does.

    Args:
        weight, tokens: ``(M,)`` float64 W and optimised tokens.
        span: ``(M,)`` int64, numbered over the batch without holes.
    """
    spans = _count(span)
    mass = segment_sum(tokens, span, spans).clamp_min(1.0)
    return (segment_sum(tokens * weight, span, spans) / mass)[span]


# Evidence


@dataclass(frozen=True)
class Evidence:
    """How far the teacher agrees with the outcome at each turn: it likes the tokens of a won episode, or dislikes those
    of a lost one, more than the policy does.

    Args:
        gap: ``(M,)`` float64, log-prob under the teacher minus under the policy, as a mean over the optimised tokens of
            the turn; 0 for a turn without any.
        tokens: ``(M,)`` float64 number of optimised tokens N.
        evidence: ``(M,)`` float64, sgn(A) times the gap.
    """

    gap: torch.Tensor
    tokens: torch.Tensor
    evidence: torch.Tensor


@torch.no_grad()
def turn_evidence(gap: torch.Tensor, mask: torch.Tensor, advantage: torch.Tensor) -> Evidence:
    """Outcome-oriented evidence of each turn (the paper's equation of E; method facts E.35).

    Args:
        gap: ``(M, L)``, of any content where the mask is 0.
        mask: ``(M, L)`` bool, the optimised tokens.
    """
    mask = mask.bool()
    # Sums over tokens stay in the gap's precision: an (M, L) copy in float64 would cost more than all else here.
    tokens = mask.sum(-1, dtype=torch.float32).double()
    mean = torch.where(mask, gap, 0.0).sum(-1).double() / tokens.clamp_min(1.0)
    return Evidence(mean, tokens, advantage.sign().double() * mean)


# Allocation


@dataclass(frozen=True)
class Allocation:
    """The shares of a rollout's spans in its credit, and those of a span's turns in the credit of the span.

    Args:
        budget: ``(J,)`` float64 B of each span; sums to 1 over the spans of a rollout.
        share: ``(M,)`` float64 Q of each turn within its span.
        density: ``(M,)`` float64 raw density; its token-weighted mean over a rollout is 1.
    """

    budget: torch.Tensor
    share: torch.Tensor
    density: torch.Tensor


@torch.no_grad()
def allocate(
    evidence: torch.Tensor, tokens: torch.Tensor, rollout: torch.Tensor, span: torch.Tensor, temperature: float
) -> Allocation:
    """The two-level allocation B and Q and the density they imply (the paper's appendix; method facts E.36, E.37).

    A turn without optimised tokens has density 1 and counts neither in token sums nor in the mean evidence of its span
    (method facts E.42).

    Args:
        evidence, tokens: ``(M,)``.
        rollout, span: ``(M,)`` int64, numbered over the batch without holes; a span lies in one rollout. One span for
            each rollout gives the flat turn allocation, Q over the whole rollout (method facts F.47).
        temperature: T of both levels.
    """
    spans, rollouts = _count(span), _count(rollout)
    carries = (tokens > 0).double()
    mass = segment_sum(tokens, span, spans)
    mean = segment_sum(evidence * carries, span, spans) / segment_sum(carries, span, spans).clamp_min(1.0)
    owner = torch.zeros(spans, dtype=torch.int64, device=span.device).index_copy_(0, span, rollout)
    budget = _softmax(mass.log() + mean / temperature, owner, rollouts)
    share = _softmax(tokens.log() + evidence / temperature, span, spans)
    total = segment_sum(tokens, rollout, rollouts)[rollout]
    density = total * budget[span] * share / tokens.clamp_min(1.0)
    return Allocation(budget, share, torch.where(tokens > 0, density, 1.0))


# Softmax over segments


def _count(segment: torch.Tensor) -> int:
    return int(segment.max()) + 1 if len(segment) else 0


def _softmax(logits: torch.Tensor, segment: torch.Tensor, count: int) -> torch.Tensor:
    """0 for logits of -inf, also where a whole segment is -inf."""
    peak = logits.new_full((count,), torch.finfo(logits.dtype).min)
    peak.scatter_reduce_(0, segment, logits, "amax")
    mass = (logits - peak[segment]).exp()
    return mass / segment_sum(mass, segment, count).clamp_min(torch.finfo(logits.dtype).tiny)[segment]


# The clip range


@torch.no_grad()
def project_to_box(
    density: torch.Tensor, mass: torch.Tensor, segment: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """Computes the weighted Euclidean projection onto low <= d <= high with sum(mass * d) = sum(mass) in each segment,
    ``(n,)`` float64.

    The result is clip(density - shift) with one shift for each segment, the root of a falling piecewise linear
    function. Newton steps are exact on the right linear piece but can cycle around a kink, so they alternate with
    bisection steps. A segment that is already within the clip range stays unchanged (method facts E.38).

    Args:
        density, mass: ``(n,)`` float64; rows of mass 0 are clipped but weigh nothing.
        segment: ``(n,)`` int64 from 0.
        low, high: the clip range. It must hold 1, since otherwise no density keeps the budget.
    """
    count = _count(segment)
    budget = segment_sum(mass, segment, count)
    # The shifts that put a whole segment at the top and at the bottom of the clip range, and a first shift.
    left = density.new_full((count,), torch.inf).scatter_reduce_(0, segment, density, "amin") - high
    right = density.new_full((count,), -torch.inf).scatter_reduce_(0, segment, density, "amax") - low
    shift = torch.zeros_like(left).clamp(left, right)
    for step in range(200):
        moved = density - shift[segment]
        excess = segment_sum(mass * moved.clamp(low, high), segment, count) - budget
        done = excess.abs() <= 1e-12 * budget
        if bool(done.all()):
            break
        left, right = torch.where(excess > 0, shift, left), torch.where(excess < 0, shift, right)
        slope = segment_sum(mass * ((moved > low) & (moved < high)), segment, count)
        newton, middle = shift + excess / slope, (left + right) / 2
        inside = (slope > 0) & (newton > left) & (newton < right)
        tried = torch.where(inside, newton, middle) if step % 2 == 0 else middle
        shift = torch.where(done, shift, tried)
    outside = segment_sum(((density < low) | (density > high)).double(), segment, count) > 0
    return torch.where(outside[segment], (density - shift[segment]).clamp(low, high), density)


def density_box(weighting: str, cap: float, band: float) -> tuple[float, float]:
    """Returns the clip range of the density: [0, cap] for "capped" (the paper), [1 - band, 1 + band] for "band"."""
    return (0.0, cap) if weighting == "capped" else (1.0 - band, 1.0 + band)


@torch.no_grad()
def turn_weights(
    density: torch.Tensor,
    tokens: torch.Tensor,
    rollout: torch.Tensor,
    advantage: torch.Tensor,
    mixing: float,
    limits: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns W = (1 - eta) + eta * clipped density (the paper's "Budget normalization"; method facts E.38 to E.42) and
    the density within the clip range, ``(M,)`` float64 each. W is exactly 1 for rollouts of zero advantage and for
    turns without optimised tokens.

    Args:
        density, tokens, advantage: ``(M,)``.
        rollout: ``(M,)`` int64 from 0 without holes.

    Raises:
        RuntimeError: if the token budget of a rollout is not kept.
    """
    neutral = (advantage == 0) | (tokens <= 0)
    projected = project_to_box(torch.where(neutral, 1.0, density), tokens, rollout, *limits)
    weight = torch.where(neutral, 1.0, (1.0 - mixing) + mixing * projected)
    check_budget(weight, tokens, rollout)
    return weight, projected


def check_budget(weight: torch.Tensor, mass: torch.Tensor, rollout: torch.Tensor) -> None:
    """Raises RuntimeError unless sum(mass * weight) = sum(mass) in every rollout, to 1e-5 relative (E.40)."""
    count = _count(rollout)
    budget = segment_sum(mass, rollout, count)
    error = (segment_sum(mass * weight, rollout, count) - budget).abs()
    if bool((error > 1e-5 * budget.clamp_min(1.0)).any()) or not bool(error.isfinite().all()):
        raise RuntimeError(
            f"credit weights miss the token budget of a rollout by {float(error.max()):.3g} tokens; "
            "log-probs or evidence are probably not finite"
        )


@torch.no_grad()
def token_weights(
    gap: torch.Tensor,
    mask: torch.Tensor,
    advantage: torch.Tensor,
    rollout: torch.Tensor,
    temperature: float,
    limits: tuple[float, float],
) -> torch.Tensor:
    """The flat token ablation: one softmax over all optimised tokens of a rollout, clipped, not mixed (F.48). Returns
    ``(M, L)`` float32, 1 outside the mask and for zero advantage.

    Args:
        gap, mask: ``(M, L)``, ``mask`` bool.
        advantage, rollout: ``(M,)``, ``rollout`` int64 from 0 without holes.
    """
    mask = mask.bool() & (advantage != 0)[:, None]
    row, column = mask.nonzero(as_tuple=True)
    segment, count = rollout[row], _count(rollout)
    logits = advantage.sign().double()[row] * gap[row, column].double() / temperature
    ones = torch.ones_like(logits)
    density = _softmax(logits, segment, count) * segment_sum(ones, segment, count)[segment]
    weight = project_to_box(density, ones, segment, *limits)
    check_budget(weight, ones, segment)
    return torch.ones(mask.shape, device=mask.device).index_put_((row, column), weight.float())


# The temperature for a given spread of the weights (beyond the paper, which fixes T)

COLDEST, HOTTEST = 1e-3, 1e3
STEPS = 36  # halves the range of log T until W moves by less than 1e-9


@torch.no_grad()
def weight_std(
    weight: torch.Tensor, tokens: torch.Tensor, advantage: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Standard deviation of W over the optimised tokens of all rollouts with an advantage, on all processes; 0 without
    such a rollout. The mean of W is 1 by the token budget, so that two sums over the tokens of each process suffice.

    Args:
        weight, tokens, advantage: ``(M,)``.
    """
    counted = tokens * (advantage != 0)
    sums = torch.stack([(counted * (weight - 1.0).square()).sum(), counted.sum()])
    squares, total = gather(sums).view(-1, 2).sum(0).tolist()
    return math.sqrt(squares / total) if total else 0.0


def temperature_of_std(deviation: float, at: Callable[[float], float]) -> float:
    """Finds the T whose weights have the wanted standard deviation, by bisection of log T. The effect of a given T
    depends on the size of the gaps, which differs between policies and skills.

    The result is the coldest T if no T reaches it. Every process calls ``at`` equally often, so that it may gather.

    Args:
        at: T -> the standard deviation of its weights, which falls to 0 as T rises.
    """
    cold, hot = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(STEPS):
        middle = (cold + hot) / 2
        if at(math.exp(middle)) >= deviation:
            cold = middle
        else:
            hot = middle
    return math.exp(cold)

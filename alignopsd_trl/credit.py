"""Hierarchical credit assignment: one advantage a rollout becomes a weight a turn, on a conserved token budget.

    rewards ──► A ──► evidence E = sgn(A) mean gap ──► B over spans, Q over turns ──► density ──► box ──► W ──► A W

Everything is vectorised over the batch: ``segment`` arguments number the spans or rollouts that rows belong to.
Turn-level quantities are float64, token-level ones float32, and none carries a gradient.

Sources: the paper's section "Semi-Markov Hierarchical Credit Assignment" and its appendix; method facts E and F.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EPSILON = 1e-6  # beside the deviation of the rewards


def number_rows(*keys: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Numbers from 0 the distinct rows of integer columns, in their order: ``(M,)`` int64, and how many."""
    number = torch.zeros_like(keys[0])
    for key in keys:
        rank = torch.unique(key, return_inverse=True)[1]
        number = torch.unique(number * (len(key) + 1) + rank, return_inverse=True)[1]
    return number, int(number.max()) + 1 if len(number) else 0


def _first_rows(task: torch.Tensor, rollout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(M,)`` number of each row's rollout, and the first row of each rollout."""
    rollout, rollouts = number_rows(task, rollout)
    first = torch.full((rollouts,), len(rollout), dtype=torch.int64, device=rollout.device)
    return rollout, first.scatter_reduce_(0, rollout, torch.arange(len(rollout), device=rollout.device), "amin")


def siblings(task: torch.Tensor, rollout: torch.Tensor) -> torch.Tensor:
    """``(M,)`` int64 number of rollouts in the task group of each row."""
    _, first = _first_rows(task, rollout)
    task, tasks = number_rows(task)
    return torch.bincount(task[first], minlength=tasks)[task]


def segment_sum(values: torch.Tensor, segment: torch.Tensor, count: int) -> torch.Tensor:
    """Sums of ``values`` by segment, ``(count,)``."""
    return values.new_zeros(count).index_add_(0, segment, values)


def segment_softmax(logits: torch.Tensor, segment: torch.Tensor, count: int) -> torch.Tensor:
    """Softmax within each segment; 0 for logits of -inf, also where a whole segment is -inf."""
    peak = logits.new_full((count,), torch.finfo(logits.dtype).min)
    peak.scatter_reduce_(0, segment, logits, "amax")
    mass = (logits - peak[segment]).exp()
    return mass / segment_sum(mass, segment, count).clamp_min(torch.finfo(logits.dtype).tiny)[segment]


# Advantages


def _normalise(values: torch.Tensor, group: torch.Tensor, count: int, scale: bool) -> torch.Tensor:
    """(x - mean) / (deviation + 1e-6) within groups, Bessel's correction, float64.

    What is left of a value below the resolution of a float32 reward is rounding and becomes exactly 0: its sign would
    otherwise tilt the weights of a rollout without advantage (method facts E.41).
    """
    size = segment_sum(torch.ones_like(values), group, count)
    centred = values - (segment_sum(values, group, count) / size)[group]
    largest = values.new_zeros(count).scatter_reduce_(0, group, values.abs(), "amax")
    centred = torch.where(centred.abs() <= 2.0**-24 * largest[group], 0.0, centred)
    if not scale:
        return centred
    deviation = (segment_sum(centred.square(), group, count) / (size - 1).clamp_min(1)).sqrt()
    return centred / (deviation[group] + EPSILON)


@torch.no_grad()
def group_advantage(
    reward: torch.Tensor,
    task: torch.Tensor,
    rollout: torch.Tensor,
    statistics: str = "trajectory",
    scale: bool = True,
) -> torch.Tensor:
    """Group-relative advantage A of each turn's rollout (the paper's equation of A; method facts E.44).

    Args:
        reward: ``(M,)`` terminal reward, the same on all turns of a rollout.
        task, rollout: ``(M,)`` integers.
        statistics: population of mean and deviation: ``"trajectory"`` counts a rollout once (the paper), ``"turn"``
            once per turn it has.
        scale: divide by the deviation, or only centre.

    Returns:
        ``(M,)`` float64, exactly 0 in a group of equal rewards.

    Raises:
        ValueError: for a group of fewer than two rollouts, or unknown statistics.
    """
    if statistics not in ("trajectory", "turn"):
        raise ValueError(f"group_statistics={statistics!r} is unknown; choose 'trajectory' or 'turn'")
    if bool((siblings(task, rollout) < 2).any()):
        raise ValueError(
            "a task group with fewer than 2 rollouts has no group-relative advantage; sample more siblings"
        )
    reward = reward.detach().double()
    rollout, first = _first_rows(task, rollout)
    task, tasks = number_rows(task)
    if statistics == "turn":
        return _normalise(reward, task, tasks, scale)
    return _normalise(reward[first], task[first], tasks, scale)[rollout]


@torch.no_grad()
def invalid_action_residual(
    reward: torch.Tensor, action_valid: torch.Tensor, task: torch.Tensor, penalty: float, scale: bool = True
) -> torch.Tensor:
    """What a penalty on invalid actions adds to each turn after allocation (method facts E.45).

    The difference of two normalisations over the turns of the task, with and without ``penalty`` taken off the reward
    of turns whose action the environment refused. It is relative: valid turns of such a group rise.

    Args:
        reward: ``(M,)``.
        action_valid: ``(M,)`` bool.
        task: ``(M,)`` integers.

    Returns:
        ``(M,)`` float64.
    """
    task, tasks = number_rows(task)
    reward = reward.detach().double()
    penalised = reward - penalty * (~action_valid.bool()).double()
    return _normalise(penalised, task, tasks, scale) - _normalise(reward, task, tasks, scale)


# Evidence


@dataclass(frozen=True)
class Evidence:
    """Attributes:
    gap: ``(M,)`` float64 mean gap over the optimised tokens, 0 for a turn without any.
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
        advantage: ``(M,)``.
    """
    mask = mask.bool()
    # Sums over tokens stay in the gap's precision: an (M, L) copy in float64 would cost more than all else here.
    tokens = mask.sum(-1, dtype=torch.float32).double()
    mean = torch.where(mask, gap, 0.0).sum(-1).double() / tokens.clamp_min(1.0)
    return Evidence(mean, tokens, advantage.sign().double() * mean)


# Allocation


@dataclass(frozen=True)
class Allocation:
    """Attributes:
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

    A turn without optimised tokens takes part in nothing: not in token sums, not in the mean evidence of its span; its
    density is 1 (method facts E.42).

    Args:
        evidence, tokens: ``(M,)``.
        rollout, span: ``(M,)`` int64, numbered over the batch without holes; a span lies in one rollout. One span a
            rollout gives the flat turn allocation, Q over the whole rollout (method facts F.47).
        temperature: T of both levels.
    """
    spans, rollouts = _count(span), _count(rollout)
    carries = (tokens > 0).double()
    mass = segment_sum(tokens, span, spans)
    mean = segment_sum(evidence * carries, span, spans) / segment_sum(carries, span, spans).clamp_min(1.0)
    owner = torch.zeros(spans, dtype=torch.int64, device=span.device).index_copy_(0, span, rollout)
    budget = segment_softmax(mass.log() + mean / temperature, owner, rollouts)
    share = segment_softmax(tokens.log() + evidence / temperature, span, spans)
    total = segment_sum(tokens, rollout, rollouts)[rollout]
    density = total * budget[span] * share / tokens.clamp_min(1.0)
    return Allocation(budget, share, torch.where(tokens > 0, density, 1.0))


def _count(segment: torch.Tensor) -> int:
    return int(segment.max()) + 1 if len(segment) else 0


@torch.no_grad()
def project_to_box(
    density: torch.Tensor, mass: torch.Tensor, segment: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """Weighted Euclidean projection onto low <= d <= high with sum(mass * d) = sum(mass) in each segment.

    That is clip(density - shift) with one shift a segment, the root of a falling piecewise linear function: Newton
    steps, which are exact once the right piece is found, in turn with bisections, since Newton alone can go round in
    circles about a kink. A segment whose densities are all inside the box already is returned as it is (method facts
    E.38).

    Args:
        density, mass: ``(n,)`` float64; rows of mass 0 are clipped but weigh nothing.
        segment: ``(n,)`` int64 from 0.
        low, high: the box.

    Returns:
        ``(n,)`` float64.

    Raises:
        ValueError: if the box does not hold 1, so that no density can keep the budget.
    """
    if not low <= 1.0 <= high:
        raise ValueError(f"the density box [{low}, {high}] must hold 1, else no weights keep the token budget")
    count = _count(segment)
    budget = segment_sum(mass, segment, count)
    left, right, shift = _bracket(density, segment, count, low, high)
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


def _bracket(
    density: torch.Tensor, segment: torch.Tensor, count: int, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Shifts that put a whole segment at the top and at the bottom of the box, and the shift 0 to start from."""
    lowest = density.new_full((count,), torch.inf).scatter_reduce_(0, segment, density, "amin")
    highest = density.new_full((count,), -torch.inf).scatter_reduce_(0, segment, density, "amax")
    left, right = lowest - high, highest - low
    return left, right, torch.zeros_like(left).clamp(left, right)


def density_box(weighting: str, cap: float, band: float) -> tuple[float, float]:
    """[0, cap] for ``"capped"`` (the paper), [1 - band, 1 + band] for ``"band"``.

    Raises:
        ValueError: for an unknown weighting.
    """
    if weighting not in ("capped", "band"):
        raise ValueError(f"weighting={weighting!r} is unknown; choose 'capped' or 'band'")
    return (0.0, cap) if weighting == "capped" else (1.0 - band, 1.0 + band)


@dataclass(frozen=True)
class Weights:
    """Attributes:
    projected: ``(M,)`` float64 density inside the box.
    weight: ``(M,)`` float64 W.
    """

    projected: torch.Tensor
    weight: torch.Tensor


@torch.no_grad()
def turn_weights(
    density: torch.Tensor,
    tokens: torch.Tensor,
    rollout: torch.Tensor,
    advantage: torch.Tensor,
    mixing: float,
    box: tuple[float, float],
) -> Weights:
    """W = (1 - eta) + eta * boxed density (the paper's appendix "Budget normalization"; method facts E.38 to E.42).

    Exactly 1 for rollouts of zero advantage and for turns without optimised tokens.

    Args:
        density, tokens, advantage: ``(M,)``.
        rollout: ``(M,)`` int64 from 0 without holes.
        mixing: eta.
        box: of the density.

    Raises:
        RuntimeError: if the token budget of a rollout is not kept.
    """
    neutral = (advantage == 0) | (tokens <= 0)
    projected = project_to_box(torch.where(neutral, 1.0, density), tokens, rollout, *box)
    weight = torch.where(neutral, 1.0, (1.0 - mixing) + mixing * projected)
    check_budget(weight, tokens, rollout)
    return Weights(projected, weight)


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
    box: tuple[float, float],
) -> torch.Tensor:
    """The flat token ablation: one softmax over all optimised tokens of a rollout, boxed, not mixed (F.48).

    Args:
        gap: ``(M, L)``.
        mask: ``(M, L)`` bool.
        advantage: ``(M,)``.
        rollout: ``(M,)`` int64 from 0 without holes.

    Returns:
        ``(M, L)`` float32, 1 outside the mask and for zero advantage.
    """
    mask = mask.bool() & (advantage != 0)[:, None]
    row, column = mask.nonzero(as_tuple=True)
    segment, count = rollout[row], _count(rollout)
    logits = advantage.sign().double()[row] * gap[row, column].double() / temperature
    ones = torch.ones_like(logits)
    density = segment_softmax(logits, segment, count) * segment_sum(ones, segment, count)[segment]
    weight = project_to_box(density, ones, segment, *box)
    check_budget(weight, ones, segment)
    return torch.ones(mask.shape, device=mask.device).index_put_((row, column), weight.float())


def token_advantages(advantage: torch.Tensor, mask: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """``(M,)`` or ``(M, L)`` advantages, plus a residual per turn, on the optimised tokens: ``(M, L)`` float32."""
    advantage = advantage if advantage.dim() == 2 else advantage[:, None]
    advantage = advantage if residual is None else advantage + residual[:, None]
    return torch.where(mask.bool(), advantage.float(), 0.0).detach()

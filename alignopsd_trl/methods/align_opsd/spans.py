"""Correspondence-driven spans: cuts a rollout where one functional decision ends and the next begins.

    H, eligible ──► profiles ──► divergence of neighbouring turns ──► batch threshold ──► segmentation

`decision_spans` does this for a batch. Profiles and divergences are per task in canonical order, the threshold is over
the whole batch on all processes, and each rollout is segmented greedily from its first turn on. Spans depend on the
correspondence only, never on gaps, rewards, masks or advantages.

Sources: the paper's appendix "Adaptive span construction"; method facts D, F.49 and F.50.
"""

from __future__ import annotations

import math
import random
from bisect import bisect, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.turns import Groups, Thought

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.correspondence import TaskSimilarity
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions


@dataclass(frozen=True)
class Shifts:
    """The divergence of each turn's profile from that of the turn before.

    Args:
        value: ``(M,)`` float64 divergence, 0 at first turns and where it does not count.
        counts: ``(M,)`` bool, whether it is evidence of a boundary.
    """

    value: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True)
class Spans:
    """The partition of every rollout into decision spans.

    Args:
        span: ``(M,)`` int64 span of each turn, numbered over the batch in (task, rollout) order.
        cuts: the rows of each rollout and where it was cut.
        shifts: that the cuts came from.
        quantile, threshold: of the counting shifts of all processes, before and after clipping; `None` where nothing
            counted, or where the cuts were clear before they could be known.
    """

    span: torch.Tensor
    cuts: list[tuple[list[int], Segmentation]]
    shifts: Shifts
    quantile: float | None
    threshold: float | None


@torch.no_grad()
def decision_spans(
    tasks: Sequence[TaskSimilarity],
    groups: Groups,
    options: AlignOPSDOptions,
    gather: Callable[[torch.Tensor], torch.Tensor],
    bounds: tuple[float, float] | None = None,
) -> Spans:
    """Profiles, divergence of neighbours, and the cuts of every rollout.

    Args:
        tasks: H of each task.
        groups: of the M turns.
        options: for gamma_H, the profiles, the threshold, the lengths of spans, and the seed of random ones.
        gather: ``(n,)`` of this process -> ``(N,)`` of all of them; every process makes the same calls.
        bounds: between which the batch threshold is, where nobody knows it and no cut that is read depends on it
            (`unsettled`); the others are made at the upper one.
    """
    shifts, quantile = correspondence_shifts(tasks, groups, options, profile_columns(groups, options, gather)), None
    if options.allocation == "span" and bounds is None:
        quantile = boundary_quantile(gather(shifts.value[shifts.counts]), options.boundary_quantile)
        threshold = clip_threshold(quantile, options.boundary_min, options.boundary_max)
    else:
        threshold = bounds[0] if bounds and bounds[0] == bounds[1] else None
    span, cuts = _cut(shifts, groups, options, bounds[1] if bounds else threshold)
    return Spans(span, cuts, shifts, quantile, threshold)


def profile_columns(
    groups: Groups, options: AlignOPSDOptions, gather: Callable[[torch.Tensor], torch.Tensor]
) -> int | None:
    """Counts the turns of the batch on all processes, which normalises the entropy distance. `None` for other
    distances."""
    if options.profile_distance != "entropy":
        return None
    return int(gather(torch.tensor([float(len(groups.task))], device=groups.task.device)).sum())


def correspondence_shifts(
    tasks: Sequence[TaskSimilarity], groups: Groups, options: AlignOPSDOptions, columns: int | None
) -> Shifts:
    """Computes the shifts of the given tasks' turns. Other turns get 0 and do not count."""
    value = torch.zeros(len(groups.task), dtype=torch.float64, device=groups.task.device)
    counts = torch.zeros_like(value, dtype=torch.bool)
    for task in tasks:
        profile, valid = profiles(
            task.similarity, task.eligible, options.similarity_threshold, options.profile_temperature
        )
        value[task.rows], counts[task.rows] = adjacent_divergence(
            profile, valid, task.eligible, task.rollout, options.profile_distance, columns
        )
    return Shifts(value, counts)


def possible_shifts(groups: Groups, student: Sequence[Thought]) -> torch.Tensor:
    """``(M,)`` bool: turns whose shift may count, before the teacher is asked. They have an earlier turn and siblings,
    and the policy's thinking parsed at both turns.

    Args:
        groups: of the M turns.
        student: M thoughts.
    """
    valid = torch.tensor([thought.thinking_valid for thought in student], device=groups.task.device).bool()
    possible = torch.zeros_like(valid)
    for rows in groups.by_rollout:
        possible[rows[1:]] = valid[rows[1:]] & valid[rows[:-1]]
    return possible & (groups.siblings > 1)


def unsettled(
    shifts: Shifts, rollouts: Sequence[torch.Tensor], options: AlignOPSDOptions, bounds: tuple[float, float]
) -> torch.Tensor:
    """``(R,)`` bool: rollouts whose spans depend on where between the bounds the threshold lies.

    Args:
        shifts: of the M turns.
        rollouts: rows of those whose spans matter.
        options: for the lengths of spans.
        bounds: the least and the most that the threshold can be.
    """
    limits = options.min_span, options.max_span, options.boundary_min
    own = ((shifts.value[rows].tolist(), shifts.counts[rows].tolist()) for rows in rollouts)
    found = [bool(turning_points(value, counts, bounds, *limits)) for value, counts in own]
    return torch.tensor(found, dtype=torch.bool, device=shifts.value.device)


def _cut(
    shifts: Shifts, groups: Groups, options: AlignOPSDOptions, threshold: float | None
) -> tuple[torch.Tensor, list[tuple[list[int], Segmentation]]]:
    """Cuts every rollout: at the threshold, or at random without any."""
    limits = options.min_span, options.max_span, options.boundary_min
    value, counts = shifts.value.tolist(), shifts.counts.tolist()
    span, cuts, number = torch.zeros(len(value), dtype=torch.int64), [], 0
    for index, rows in enumerate(groups.by_rollout):
        place = rows.tolist()
        local = [value[row] for row in place], [counts[row] for row in place]
        if options.allocation == "random":
            found = random_segment(*local, options.random_span_seed + index, *limits)
        else:
            found = segment(*local, threshold, *limits)
        lengths = torch.tensor([end - start for start, end in found.spans])
        span[place] = number + torch.repeat_interleave(lengths)
        cuts.append((place, found))
        number += len(found.spans)
    return span.to(shifts.value.device), cuts


# Formulas


@torch.no_grad()
def profiles(
    similarity: torch.Tensor, eligible: torch.Tensor, threshold: float, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense correspondence profiles P of one task group (method facts D.23 and D.24).

    Args:
        similarity: ``(S, T)`` H.
        eligible: ``(S, T)`` bool.
        threshold: gamma_H: below it at its best source a profile is not valid. It does not cut the profile itself.

    Returns:
        ``(T, S)`` float64, softmax(H[:, target] / temperature) over the eligible sources, a zero row without any; and
        ``(T,)`` bool, whether the profile is valid.
    """
    eligible = eligible.bool().T
    masked = similarity.T.masked_fill(~eligible, -torch.inf)
    valid = (masked >= threshold).any(-1)
    profile = (masked.double() / temperature).softmax(-1)
    return torch.where(eligible, profile, 0.0), valid


def divergence(left: torch.Tensor, right: torch.Tensor, distance: str = "jsd", columns: int | None = None):
    """Distance between profiles along the last axis, in [0, 1], float64.

    Args:
        left, right: ``(..., S)`` distributions.
        distance: ``"jsd"`` (Jensen-Shannon divergence in bits, the paper), ``"entropy"`` (difference of Shannon
            entropies over the logarithm of ``columns``) or ``"cosine"`` (1 - cosine).
        columns: number of turns in the batch, by default the width of the profiles; used by ``"entropy"`` only.
    """
    left, right = left.detach().double(), right.detach().double()
    if distance == "jsd":
        mixed = _entropy((left + right) / 2)
        value = (mixed - (_entropy(left) + _entropy(right)) / 2) / math.log(2)
    elif distance == "entropy":
        width = left.shape[-1] if columns is None else columns
        value = (_entropy(left) - _entropy(right)).abs() / math.log(max(width, 2))
    else:
        value = 1.0 - torch.nn.functional.cosine_similarity(left, right, dim=-1)
    return value.clamp(0.0, 1.0)


def _entropy(distribution: torch.Tensor) -> torch.Tensor:
    # A clamp far below any softmax value in use makes 0 log 0 = 0 and stays vectorised, unlike torch.special.entr.
    return -(distribution * distribution.clamp_min(1e-300).log()).sum(-1)


@torch.no_grad()
def adjacent_divergence(
    profile: torch.Tensor,
    valid: torch.Tensor,
    eligible: torch.Tensor,
    rollout: torch.Tensor,
    distance: str = "jsd",
    columns: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The correspondence shift D of each turn against the turn before it in its rollout.

    A shift counts only between two valid profiles over the same eligible sources. A change of eligibility is no
    evidence of a boundary (method facts D.26). "Before" is in turn order; a gap in turn numbers is not looked at.

    Args:
        profile: ``(m, S)``, rows in canonical order.
        valid: ``(m,)`` bool.
        eligible: ``(S, m)`` bool.
        rollout: ``(m,)`` integers.

    Returns:
        ``(m,)`` float64, 0 at first turns and where it does not count, and ``(m,)`` bool, whether it counts.
    """
    counts = torch.zeros_like(valid, dtype=torch.bool)
    same_sources = (eligible[:, 1:].bool() == eligible[:, :-1].bool()).all(0)
    counts[1:] = valid[1:].bool() & valid[:-1].bool() & (rollout[1:] == rollout[:-1]) & same_sources
    shift = torch.zeros(len(valid), dtype=torch.float64, device=profile.device)
    at = counts.nonzero().squeeze(-1)
    shift[at] = divergence(profile[at - 1], profile[at], distance, columns)
    return shift, counts


def boundary_quantile(shifts: torch.Tensor, quantile: float) -> float | None:
    """Quantile of the counting divergences of the whole batch; ``None`` if there are none.

    Linear interpolation between order statistics at rank q (n - 1), in float64. A rank that is an integer up to
    rounding takes that order statistic itself, so that the turn that sets the threshold never exceeds it.
    """
    if not len(shifts):
        return None
    ordered = shifts.detach().double().sort().values
    rank = quantile * (len(ordered) - 1)
    if abs(rank - round(rank)) < 1e-9 * max(rank, 1.0):
        return float(ordered[round(rank)])
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return float(low + (high - low) * (rank - math.floor(rank)))


def clip_threshold(quantile: float | None, low: float, high: float) -> float | None:
    """The batch threshold: the quantile clipped to [low, high] (method facts D.28)."""
    return None if quantile is None else min(max(quantile, low), high)


def threshold_bounds(
    shifts: torch.Tensor, missing: int, quantile: float, low: float, high: float
) -> tuple[float, float]:
    """The least and the most that the batch threshold can be, whatever divergences are still to come.

    With n known and at most m missing, the quantile lies between the order statistics at floor(r) and ceil(r) of rank
    r = q (n + m - 1): the first with m zeros among the known, the second with m ones. One divergence fewer moves the
    rank down by q <= 1, and so neither bound outwards. Both bounds are ``high`` as soon as b + m <= r, where b of the
    known are below ``high``.

    Args:
        shifts: ``(n,)`` the counting divergences known so far, of all processes.
        missing: m, the most that may come.
        quantile, low, high: q and the two clips.
    """
    count, ordered = len(shifts), shifts.detach().double().sort().values
    rank = quantile * max(count + missing - 1, 0)
    first, last = math.floor(rank) - missing, math.ceil(rank)
    least, most = ordered[first] if 0 <= first < count else 0.0, ordered[last] if last < count else 1.0
    return min(max(float(least), low), high), min(max(float(most), low), high)


@dataclass(frozen=True)
class Segmentation:
    """Partition of one rollout of n turns. Position k cuts before local turn k.

    Args:
        spans: ``(start, end)`` of local turns, half open.
        threshold: cuts kept by the threshold, rising.
        drawn: cuts kept by chance (random spans).
        guided, forced: cuts that repair over-long spans, at a divergence and at the middle.
        candidates, accepted: positions that asked to be cuts, and those kept, before any repair.
    """

    spans: list[tuple[int, int]]
    threshold: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    guided: list[int] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    candidates: int = 0
    accepted: int = 0


def segment(
    shifts: Sequence[float],
    counts: Sequence[bool],
    threshold: float | None,
    min_span: int,
    max_span: int,
    fallback: float,
) -> Segmentation:
    """Cuts one rollout where its correspondence shifts (method facts D.29 to D.32).

    Args:
        shifts, counts: divergence of each of the n turns against the one before, and whether it counts.
        threshold: cuts are strictly above it; ``None`` for no threshold cuts.
        min_span, max_span: in turns; ``max_span >= 2 * min_span - 1``, so that an over-long span has a legal cut.
        fallback: least divergence, inclusive, of a cut inside an over-long span.
    """
    above = [k for k in range(1, len(shifts)) if threshold is not None and counts[k] and shifts[k] > threshold]
    kept = _keep_apart(sorted(above, key=lambda k: (-shifts[k], k)), len(shifts), min_span)
    spans, guided, forced = _repair(kept, shifts, counts, min_span, max_span, fallback)
    return Segmentation(spans, threshold=kept, guided=guided, forced=forced, candidates=len(above), accepted=len(kept))


def turning_points(
    shifts: Sequence[float],
    counts: Sequence[bool],
    bounds: tuple[float, float],
    min_span: int,
    max_span: int,
    fallback: float,
) -> list[float]:
    """Thresholds within the bounds at which the spans of a rollout change, rising; empty if the spans are the same for
    all.

    Cuts are strictly above the threshold, so all thresholds from one divergence up to the next cut alike. Of the cuts
    that these add, those that would leave a span too short are not made, and others would have been made in a span
    that is too long.
    """
    least, most = bounds
    inside = {shift for shift, counted in zip(shifts, counts, strict=True) if counted and least < shift <= most}
    points = sorted(inside)
    spans = [segment(shifts, counts, point, min_span, max_span, fallback).spans for point in (least, *points)]
    return [point for point, (below, above) in zip(points, pairwise(spans), strict=True) if below != above]


def random_segment(
    shifts: Sequence[float],
    counts: Sequence[bool],
    seed: int,
    min_span: int,
    max_span: int,
    fallback: float,
) -> Segmentation:
    """Cuts at positions in random order, packed until nothing fits, then the same repair (method facts F.49).

    ``seed`` is the base seed plus the rollout's index in (task, rollout) order: the same lengths get the same cuts at
    every step. The other arguments are those of `segment`.
    """
    tried = list(range(min_span, len(shifts) - min_span + 1))
    random.Random(seed).shuffle(tried)
    kept = _keep_apart(tried, len(shifts), min_span)
    spans, guided, forced = _repair(kept, shifts, counts, min_span, max_span, fallback)
    return Segmentation(spans, drawn=kept, guided=guided, forced=forced, candidates=len(tried), accepted=len(kept))


def _keep_apart(positions: Sequence[int], length: int, min_span: int) -> list[int]:
    """Greedy: the positions, in the order given, that keep ``min_span`` from the cuts so far and from both ends."""
    cuts = [0, length]
    for position in positions:
        after = bisect(cuts, position)
        if position - cuts[after - 1] >= min_span and cuts[after] - position >= min_span:
            cuts.insert(after, position)
    return cuts[1:-1]


def _repair(
    kept: Sequence[int],
    shifts: Sequence[float],
    counts: Sequence[bool],
    min_span: int,
    max_span: int,
    fallback: float,
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Cuts over-long spans from the left until none is left. Returns spans, guided cuts and forced cuts."""
    cuts, guided, forced = [0, *kept, len(shifts)], [], []
    left = 0
    while left < len(cuts) - 1:
        start, end = cuts[left], cuts[left + 1]
        if end - start <= max_span:
            left += 1
            continue
        legal = range(start + min_span, end - min_span + 1)
        shifted = [k for k in legal if counts[k] and shifts[k] >= fallback]
        if shifted:
            cut = max(shifted, key=lambda k: (shifts[k], -k))
            insort(guided, cut)
        else:
            cut = min(legal, key=lambda k: (abs(2 * k - start - end), k))
            insort(forced, cut)
        cuts.insert(left + 1, cut)
    return list(zip(cuts[:-1], cuts[1:], strict=True)), guided, forced

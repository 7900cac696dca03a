"""Correspondence-driven spans: cuts a rollout where one functional decision ends and the next begins.

    H, eligible ──► profiles ──► divergence of neighbouring turns ──► batch threshold ──► segmentation

`decision_spans` does this for a batch; `random_spans` and `whole_rollouts` are its ablations. Profiles and divergences
are per task in canonical order, the threshold is over the whole batch on all processes, and each rollout is segmented
greedily from its first turn on. Spans depend on the correspondence only, never on gaps, masks or the sign of rewards.

Sources: the paper's appendix "Adaptive span construction"; method facts D, F.49 and F.50.
"""

from __future__ import annotations

import math
import random
from bisect import bisect, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.align_opsd.correspondence import Correspondence, match_rest
from alignopsd_trl.methods.base import Teacher
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions


@dataclass(frozen=True)
class Spans:
    """The partition of every rollout into spans.

    Args:
        span: ``(M,)`` int64 span of each turn, numbered over the batch in (task, rollout) order.
        matches: the correspondence of all tasks that were compared.
    """

    span: torch.Tensor
    matches: Correspondence


@dataclass(frozen=True)
class CutSpans(Spans):
    """Spans that result from cuts.

    Args:
        cuts: the rows of each rollout and where it was cut.
        divergence: ``(M,)`` float64, of each turn's profile from that of the turn before; 0 at first turns and where it
            does not count.
        counts: ``(M,)`` bool, whether it is evidence of a boundary.
        quantile, threshold: of the counting divergences of all processes, before and after clipping; `None` where
            nothing counts, for random cuts, or where the divergences of some groups are unknown.
    """

    cuts: list[tuple[list[int], Segmentation]]
    divergence: torch.Tensor
    counts: torch.Tensor
    quantile: float | None = None
    threshold: float | None = None


def whole_rollouts(batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions) -> Spans:
    """One span for each rollout. The arguments are those of `decision_spans`."""
    return Spans(batch.groups.rollout, matches)


@torch.no_grad()
def random_spans(batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions) -> CutSpans:
    """Cuts every rollout at random. The arguments are those of `decision_spans`."""
    shifts = _shifts(batch, teacher, matches, options)
    return _cut(batch, matches, *shifts, options, random_segment, count())


@torch.no_grad()
def decision_spans(batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions) -> CutSpans:
    """Cuts every rollout at the batch threshold, a clipped quantile of the shifts of all groups.

    The shifts of the groups in ``matches`` bound the threshold. If none of them lies between the bounds, every
    threshold there cuts these groups alike, and no reasoning trace of the other groups is generated. Otherwise all are.
    The bounds are over all processes, which therefore make the same calls.

    Args:
        matches: H of the groups that have a scored turn.
    """
    limits = options.boundary_min, options.boundary_max
    value, counts = _shifts(batch, teacher, matches, options)
    known = teacher.gather(value[counts])
    missing = 0
    if batch.scored is not None:  # what may count has an earlier turn, siblings and a trace of the policy
        thinks = torch.tensor([turn.thought.thinking_valid for turn in batch.turns], device=batch.task.device).bool()
        possible = thinks & (batch.groups.position > 0) & (batch.groups.siblings > 1)
        missing = _total(possible & ~matches.compared, teacher)
    if missing:
        low, high = threshold_bounds(known, missing, options.boundary_quantile, *limits)
        if not bool(((known > low) & (known <= high)).any()):
            cut = _cut(batch, matches, value, counts, options, segment, repeat(high))
            return replace(cut, threshold=high if low == high else None)
        matches = match_rest(batch, teacher, matches, options)
        value, counts = _shifts(batch, teacher, matches, options)
        known = teacher.gather(value[counts])
    quantile = boundary_quantile(known, options.boundary_quantile)
    threshold = clip_threshold(quantile, *limits)
    cut = _cut(batch, matches, value, counts, options, segment, repeat(threshold))
    return replace(cut, quantile=quantile, threshold=threshold)


def _total(chosen: torch.Tensor, teacher: Teacher) -> int:
    """Counts the true ones of all processes."""
    return int(teacher.gather(chosen.sum(dtype=torch.float64)[None]).sum())


def _shifts(
    batch: TurnBatch, teacher: Teacher, matches: Correspondence, options: AlignOPSDOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `CutSpans.divergence` and ``counts``. Turns of tasks that were not compared get 0, which does not
    count."""
    every = torch.ones_like(batch.task)
    columns = _total(every, teacher) if options.profile_distance == "entropy" else None  # turns of all processes
    least = options.similarity_threshold if options.valid_profiles == "matched" else None
    value = torch.zeros(len(batch), dtype=torch.float64, device=batch.task.device)
    counts = torch.zeros_like(value, dtype=torch.bool)
    for task in matches.tasks:
        profile, valid = profiles(task.similarity, task.eligible, least, options.profile_temperature)
        value[task.rows], counts[task.rows] = adjacent_divergence(
            profile, valid, task.eligible, task.rollout, options.profile_distance, columns
        )
    return value, counts


def _cut(
    batch: TurnBatch,
    matches: Correspondence,
    divergence: torch.Tensor,
    counts: torch.Tensor,
    options: AlignOPSDOptions,
    cut: Callable[..., Segmentation],
    settings: Iterable[float | None],
) -> CutSpans:
    """Cuts every rollout with `segment` and its threshold, or with `random_segment` and its seed."""
    limits = options.min_span, options.max_span, options.boundary_min
    values, counting = divergence.tolist(), counts.tolist()
    span, cuts, number = torch.zeros(len(batch), dtype=torch.int64), [], 0
    for rows, setting in zip(batch.groups.by_rollout, settings, strict=False):
        place = rows.tolist()
        found = cut([values[row] for row in place], [counting[row] for row in place], setting, *limits)
        lengths = torch.tensor([end - start for start, end in found.spans])
        span[place] = number + torch.repeat_interleave(lengths)
        cuts.append((place, found))
        number += len(found.spans)
    return CutSpans(span.to(batch.task.device), matches, cuts, divergence, counts)


# Formulas


@torch.no_grad()
def profiles(
    similarity: torch.Tensor, eligible: torch.Tensor, threshold: float | None, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense correspondence profiles P of one task group (method facts D.23 and D.24).

    Args:
        similarity: ``(S, T)`` H.
        eligible: ``(S, T)`` bool.
        threshold: gamma_H, which the best source of a valid profile reaches (the release); `None`: any profile with a
            source is valid (the paper). It does not cut the profile itself.

    Returns:
        ``(T, S)`` float64, softmax(H[:, target] / temperature) over the eligible sources, a zero row without any; and
        ``(T,)`` bool, whether the profile is valid.
    """
    eligible = eligible.bool().T
    masked = similarity.T.masked_fill(~eligible, -torch.inf)
    valid = (eligible if threshold is None else masked >= threshold).any(-1)
    profile = (masked.double() / temperature).softmax(-1)
    return torch.where(eligible, profile, 0.0), valid


def divergence(
    left: torch.Tensor, right: torch.Tensor, distance: str = "jsd", columns: int | None = None
) -> torch.Tensor:
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
    evidence of a boundary (method facts D.26). "Before" is in turn order; a gap in turn numbers has no effect.

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
    """Computes the least and the most that the batch threshold can be, whatever the unknown divergences are.

    With n known and at most m missing, the quantile lies between the order statistics at floor(r) and ceil(r) of rank
    r = q (n + m - 1): the first with m zeros among the known, the second with m ones. One divergence fewer moves the
    rank down by q <= 1, and so neither bound outwards. Both bounds are ``high`` as soon as b + m <= r, where b of the
    known are below ``high``.

    Args:
        shifts: ``(n,)`` the counting divergences known so far, of all processes.
        missing: m, the largest number of unknown ones.
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
        candidates, accepted: number of positions above the threshold (or drawn), and of those kept, before any repair.
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
        threshold: a turn whose shift is above it begins a span, the largest shifts first; ``None`` for no such cuts.
        min_span, max_span: fewest and most turns of a span. ``max_span >= 2 * min_span - 1``, so that a longer span can
            always be cut into two.
        fallback: a span of more than ``max_span`` turns is cut at its largest shift of at least this value, or nearest
            its middle if it has none.
    """
    above = [k for k in range(1, len(shifts)) if threshold is not None and counts[k] and shifts[k] > threshold]
    kept = _keep_apart(sorted(above, key=lambda k: (-shifts[k], k)), len(shifts), min_span)
    found = {"threshold": kept, "candidates": len(above), "accepted": len(kept)}
    return _repaired(kept, shifts, counts, min_span, max_span, fallback, **found)


def random_segment(
    shifts: Sequence[float], counts: Sequence[bool], seed: int, min_span: int, max_span: int, fallback: float
) -> Segmentation:
    """Cuts one rollout at random (method facts F.49).

    All positions are tried in random order. A position becomes a cut if it is ``min_span`` turns away from both ends
    and from the cuts made before it. Spans that are still too long are then cut as in `segment`.

    Args:
        seed: base seed plus the rollout's index in (task, rollout) order, so that a rollout of the same index and
            length gets the same cuts at every step.
    """
    tried = list(range(min_span, len(shifts) - min_span + 1))
    random.Random(seed).shuffle(tried)
    kept = _keep_apart(tried, len(shifts), min_span)
    found = {"drawn": kept, "candidates": len(tried), "accepted": len(kept)}
    return _repaired(kept, shifts, counts, min_span, max_span, fallback, **found)


def _keep_apart(positions: Sequence[int], length: int, min_span: int) -> list[int]:
    """Keeps a position, in the given order, if it is ``min_span`` away from all earlier cuts and from both ends."""
    cuts = [0, length]
    for position in positions:
        after = bisect(cuts, position)
        if position - cuts[after - 1] >= min_span and cuts[after] - position >= min_span:
            cuts.insert(after, position)
    return cuts[1:-1]


def _repaired(
    kept: Sequence[int],
    shifts: Sequence[float],
    counts: Sequence[bool],
    min_span: int,
    max_span: int,
    fallback: float,
    **found: Any,
) -> Segmentation:
    """Cuts over-long spans from the left until none is left; ``found`` says how the cuts before were found."""
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
    return Segmentation(list(zip(cuts[:-1], cuts[1:], strict=True)), guided=guided, forced=forced, **found)

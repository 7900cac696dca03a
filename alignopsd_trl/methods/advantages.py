"""Outcome advantages of sibling groups, and sums by group: what every row of the results table begins with.

Turn-level quantities are float64, token-level ones float32, and none carries a gradient. Sources: the paper's equation
of A; method facts E.41, E.44, E.45.
"""

from __future__ import annotations

from typing import Any

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


def token_advantages(advantage: torch.Tensor, mask: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """``(M,)`` or ``(M, L)`` advantages, plus a residual per turn, on the optimised tokens: ``(M, L)`` float32."""
    advantage = advantage if advantage.dim() == 2 else advantage[:, None]
    advantage = advantage if residual is None else advantage + residual[:, None]
    return torch.where(mask.bool(), advantage.float(), 0.0).detach()


def outcome_trace(advantage: torch.Tensor, residual: torch.Tensor | None) -> dict[str, Any]:
    trace = {"row": list(range(len(advantage))), "advantage": advantage.tolist()}
    return trace if residual is None else trace | {"residual": residual.tolist()}

"""Outcome advantages of sibling groups, on which every trained method builds, and sums by group.

Turn-level quantities are float64, token-level ones float32, and none carries a gradient. Sources: the paper's equation
of A; method facts E.41, E.44, E.45.
"""

from __future__ import annotations

import torch

from alignopsd_trl.turns import Groups

EPSILON = 1e-6  # added to the deviation of the rewards
RESOLUTION = 2.0**-24  # of a float32 reward: a smaller relative difference is rounding error


def segment_sum(values: torch.Tensor, segment: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the sums of ``values`` by segment, ``(count,)``."""
    return values.new_zeros(count).index_add_(0, segment, values)


# Advantages


def normalise(
    values: torch.Tensor,
    group: torch.Tensor,
    count: int,
    counted: torch.Tensor | None = None,
    scale: bool = True,
) -> torch.Tensor:
    """Returns (x - mean) / (deviation + 1e-6) within groups, Bessel's correction; 0 where a group counts one row only.

    A difference below the resolution of a float32 reward is rounding error and becomes exactly 0. Its sign would tilt
    the weights of a zero-advantage rollout (method facts E.41).

    Args:
        values: ``(M,)``, of a floating dtype, which the result has too.
        group: ``(M,)`` int64 below ``count``.
        count: number of groups.
        counted: ``(M,)`` bool, the rows of mean and deviation; all by default.
        scale: divide by the deviation, or only centre.
    """
    weight = torch.ones_like(values) if counted is None else counted.to(values.dtype)
    size = segment_sum(weight, group, count)
    mean = segment_sum(values * weight, group, count) / size.clamp_min(1)
    largest = values.new_zeros(count).scatter_reduce_(0, group, values.abs(), "amax")
    centred = values - mean[group]
    rounding = (centred.abs() <= RESOLUTION * largest[group]) | (size[group] <= 1)
    centred = centred.masked_fill(rounding, 0.0)
    return centred / (deviation(centred, group, count, weight) + EPSILON) if scale else centred


def deviation(centred: torch.Tensor, group: torch.Tensor, count: int, weight: torch.Tensor) -> torch.Tensor:
    """Returns the deviation of each row's group, ``(M,)``, from values less their group's mean."""
    size = segment_sum(weight, group, count)
    return (segment_sum(centred.square() * weight, group, count) / (size - 1).clamp_min(1)).sqrt()[group]


@torch.no_grad()
def rollout_advantage(
    reward: torch.Tensor, groups: Groups, statistics: str = "trajectory", scale: bool = True
) -> torch.Tensor:
    """Returns the group-relative advantage A of each turn's rollout (the paper's equation of A; method facts E.44).

    Args:
        reward: ``(M,)`` terminal reward, the same on all turns of a rollout.
        groups: of the turns.
        statistics: population of mean and deviation: ``"trajectory"`` counts each rollout once (the paper), ``"turn"``
            each turn.
        scale: divide by the deviation, or only centre.

    Returns:
        ``(M,)`` float64, exactly 0 in a group of equal rewards or of one rollout.
    """
    counted = groups.position == 0 if statistics == "trajectory" else None
    return normalise(reward.detach().double(), groups.task, groups.tasks, counted, scale)


@torch.no_grad()
def invalid_action_residual(
    reward: torch.Tensor, action_valid: torch.Tensor, task: torch.Tensor, penalty: float, scale: bool = True
) -> torch.Tensor:
    """Returns the residual that a penalty on invalid actions adds to each turn's advantage (method facts E.45).

    It is the difference of two normalisations over the turns of the task: with and without ``penalty`` subtracted from
    the reward of turns whose action was invalid. Valid turns of such a group rise, because it is relative.

    Args:
        reward: ``(M,)``.
        action_valid: ``(M,)`` bool.
        task: ``(M,)`` integers from 0.

    Returns:
        ``(M,)`` float64.
    """
    count, reward = int(task.max()) + 1 if len(task) else 0, reward.detach().double()
    penalised = reward - penalty * (~action_valid.bool()).double()
    return normalise(penalised, task, count, scale=scale) - normalise(reward, task, count, scale=scale)


def token_advantages(advantage: torch.Tensor, mask: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Spreads advantages, ``(M,)`` or ``(M, L)``, plus a residual per turn over the optimised tokens, ``(M, L)``."""
    advantage = advantage if advantage.dim() == 2 else advantage[:, None]
    advantage = advantage if residual is None else advantage + residual[:, None]
    return torch.where(mask.bool(), advantage.float(), 0.0).detach()

"""GRPO: the rollout's group-relative advantage on every optimised token, on which every trained method builds.

Turn-level quantities are float64, token-level ones float32, and none carries a gradient. Sources: the paper's equation
of A; method facts E.41, E.44, E.45.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.base import Credit, Method, Teacher, register
from alignopsd_trl.turns import Groups, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


EPSILON = 1e-6  # added to the deviation of the rewards
RESOLUTION = 2.0**-24  # of a float32 reward: a smaller relative difference is rounding error


def segment_sum(values: torch.Tensor, segment: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the sums of ``values`` by segment, ``(count,)``."""
    return values.new_zeros(count).index_add_(0, segment, values)


def normalise(
    values: torch.Tensor, group: torch.Tensor, count: int, counted: torch.Tensor | None = None, scale: bool = True
) -> torch.Tensor:
    """Returns (x - mean) / (deviation + 1e-6) within groups, Bessel's correction; 0 where a group counts one row only.

    A difference below the resolution of a float32 reward is rounding error and becomes exactly 0. Its sign would tilt
    the weights of a zero-advantage rollout (method facts E.41).

    Args:
        values: ``(M,)``, of a floating dtype, which the result has too.
        group: ``(M,)`` int64 below ``count``.
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
    """Returns the group-relative advantage A of each turn's rollout, ``(M,)`` float64, exactly 0 in a group of equal
    rewards or of one rollout (the paper's equation of A; method facts E.44).

    Args:
        reward: ``(M,)`` terminal reward, the same on all turns of a rollout.
        statistics: population of mean and deviation: ``"trajectory"`` counts each rollout once (the paper), ``"turn"``
            each turn.
        scale: divide by the deviation, or only centre.
    """
    counted = groups.position == 0 if statistics == "trajectory" else None
    return normalise(reward.detach().double(), groups.task, groups.tasks, counted, scale)


@torch.no_grad()
def invalid_action_residual(
    reward: torch.Tensor, action_valid: torch.Tensor, task: torch.Tensor, penalty: float, scale: bool = True
) -> torch.Tensor:
    """Returns the residual that a penalty on invalid actions adds to each turn's advantage, ``(M,)`` float64 (method
    facts E.45).

    It is the difference of two normalisations over the turns of the task: with and without ``penalty`` subtracted from
    the reward of turns whose action was invalid. Valid turns of such a group rise, because it is relative.

    Args:
        reward, action_valid, task: ``(M,)`` numbers, bool, and integers from 0.
    """
    count, reward = int(task.max()) + 1 if len(task) else 0, reward.detach().double()
    penalised = reward - penalty * (~action_valid.bool()).double()
    return normalise(penalised, task, count, scale=scale) - normalise(reward, task, count, scale=scale)


def token_advantages(advantage: torch.Tensor, mask: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Spreads advantages, ``(M,)`` or ``(M, L)``, plus a residual per turn over the optimised tokens, ``(M, L)``."""
    advantage = advantage if advantage.dim() == 2 else advantage[:, None]
    advantage = advantage if residual is None else advantage + residual[:, None]
    return torch.where(mask.bool(), advantage.float(), 0.0).detach()


@dataclass(frozen=True)
class OutcomeAdvantage:
    """Advantages and residuals from rewards alone.

    Args:
        advantage: ``(M,)`` float64 A of each turn's rollout.
        residual: ``(M,)`` float64 of the invalid-action penalty, `None` without one.
    """

    advantage: torch.Tensor
    residual: torch.Tensor | None
    metrics: dict[str, float]

    @property
    def trace(self) -> dict[str, Any]:
        """Columns for the records."""
        columns = {"row": list(range(len(self.advantage))), "advantage": self.advantage.tolist()}
        return columns if self.residual is None else columns | {"residual": self.residual.tolist()}


def outcome(batch: TurnBatch, config: AlignOPSDConfig) -> OutcomeAdvantage:
    """Computes the advantages of a batch of sibling groups from rewards alone.

    A group with fewer than two rollouts left after environment failures gets advantage and residual 0 and is counted in
    ``outcome/lone_groups``.

    Episodes that the teacher played (`TurnBatch.privileged`) count in their group's baseline. Their own advantage is at
    least 0 and they have no residual: the policy imitates successes and is not pushed away from actions that it would
    not take.

    With ``group_statistics="turn"``, advantage plus residual equals the normalised penalised reward, as in method facts
    F.51, which subtracts the penalty before normalising.
    """
    groups, scale = batch.groups, config.scale_rewards == "group"
    lone = groups.siblings < 2
    advantage = rollout_advantage(batch.reward, groups, config.group_statistics, scale)
    residual = None
    if config.invalid_action_penalty:
        residual = invalid_action_residual(
            batch.reward, batch.action_valid, groups.task, config.invalid_action_penalty, scale
        ).masked_fill(lone, 0.0)
    advantage = imitated(batch, advantage)
    if batch.privileged is not None and residual is not None:
        residual = residual.masked_fill(batch.privileged, 0.0)
    metrics = {"outcome/lone_groups": float(len(groups.task[lone].unique()))}
    if len(batch):
        metrics["outcome/zero_advantage_share"] = float((advantage == 0).double().mean())
    return OutcomeAdvantage(advantage, residual, metrics)


def imitated(batch: TurnBatch, advantage: torch.Tensor) -> torch.Tensor:
    """Raises negative advantages ``(M,)`` to 0 in episodes that the teacher played (``privileged_siblings``): the
    policy imitates the teacher's successes and learns nothing from its failures."""
    if batch.privileged is None:
        return advantage
    return torch.where(batch.privileged, advantage.clamp_min(0.0), advantage)


def not_scored(method: Method, batch: TurnBatch) -> torch.Tensor:
    """Returns the turns ``(M,)`` bool whose credit does not depend on their log-probs, as the method declares."""
    if not method.weighs_outcome:
        return torch.zeros(len(batch), dtype=torch.bool, device=batch.task.device)
    return outcome(batch, method.config).advantage == 0


@register
class GRPO(Method):
    """Group-relative advantages, plus the residual of the invalid-action penalty if there is one."""

    name = "grpo"

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        result = outcome(batch, self.config)
        advantages = token_advantages(result.advantage, batch.policy_mask, result.residual)
        return Credit(advantages, result.metrics, trace=result.trace)

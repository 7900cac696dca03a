"""GRPO: the rollout's group-relative advantage on every optimised token. Overhead is measured against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from alignopsd_trl.methods.advantages import invalid_action_residual, rollout_advantage, token_advantages
from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class OutcomeAdvantage:
    """Advantages and residuals from rewards alone.

    Args:
        advantage: ``(M,)`` float64 A of each turn's rollout.
        residual: ``(M,)`` float64 of the invalid-action penalty, `None` without one.
        metrics: numbers for the log.
        trace: columns of the records.
    """

    advantage: torch.Tensor
    residual: torch.Tensor | None
    metrics: dict[str, float]
    trace: dict[str, Any]


def outcome(batch: TurnBatch, config: AlignOPSDConfig) -> OutcomeAdvantage:
    """Computes the advantages of a batch of sibling groups from rewards alone.

    A group with fewer than two rollouts left after environment failures gets advantage and residual 0 and is counted in
    ``outcome/lone_groups``.

    Episodes that the teacher played (`TurnBatch.privileged`) count in their group's baseline. Their own advantage is at
    least 0 and they have no residual: the policy imitates successes and is not pushed away from actions that it would
    not take.

    With ``group_statistics="turn"``, advantage plus residual equals the normalised penalised reward, as in method facts
    F.51, which subtracts the penalty before normalising.

    Args:
        batch: of whole sibling groups.
        config: for ``group_statistics``, ``scale_rewards`` and ``invalid_action_penalty``.
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
    trace = {"row": list(range(len(batch))), "advantage": advantage.tolist()}
    if residual is not None:
        trace["residual"] = residual.tolist()
    return OutcomeAdvantage(advantage, residual, metrics, trace)


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

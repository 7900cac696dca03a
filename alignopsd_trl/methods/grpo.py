"""GRPO: the rollout's group-relative advantage on every optimised token. The yardstick of overhead: no teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alignopsd_trl.methods.advantages import (
    group_advantage,
    invalid_action_residual,
    outcome_trace,
    siblings,
    token_advantages,
)
from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.methods.registry import register
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    advantage: ``(M,)`` float64 A of each turn's rollout.
    residual: ``(M,)`` float64 of the invalid-action penalty, ``None`` without one.
    metrics: scalars for the log.
    """

    advantage: torch.Tensor
    residual: torch.Tensor | None
    metrics: dict[str, float]


def outcome(batch: TurnBatch, config: AlignOPSDConfig) -> Outcome:
    """Advantages of a batch of sibling groups.

    A group that environment failures left with fewer than two rollouts compares nothing: its advantage and its
    residual are exactly 0, and ``outcome/lone_groups`` counts it.

    With ``group_statistics="turn"`` advantage plus residual is what normalising the penalised rewards would give, the
    form in which method facts F.51 subtracts the penalty before normalising.
    """
    scale, penalty = config.scale_rewards == "group", config.invalid_action_penalty
    lone = siblings(batch.task, batch.rollout) < 2
    rows = (~lone).nonzero().squeeze(-1)
    identity = batch.task[rows], batch.rollout[rows]
    advantage = torch.zeros(len(batch), dtype=torch.float64, device=batch.reward.device)
    advantage[rows] = group_advantage(batch.reward[rows], *identity, config.group_statistics, scale)
    residual = None
    if penalty:
        residual = torch.zeros_like(advantage)
        residual[rows] = invalid_action_residual(
            batch.reward[rows], batch.action_valid[rows], identity[0], penalty, scale
        )
    metrics = {"outcome/lone_groups": float(len(batch.task[lone].unique()))}
    if len(batch):
        metrics["outcome/zero_advantage_share"] = float((advantage == 0).double().mean())
    return Outcome(advantage, residual, metrics)


@register
class GRPO(Method):
    """Group-relative advantages, plus the residual of the invalid-action penalty if there is one."""

    name = "grpo"

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        found = outcome(batch, self.config)
        advantages = token_advantages(found.advantage, batch.policy_mask, found.residual)
        return Credit(advantages, found.metrics, trace=outcome_trace(found.advantage, found.residual))

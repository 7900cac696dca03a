"""What the baselines share: their options, the outcome advantage, and the teacher's view of the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from alignopsd_trl.credit import group_advantage, invalid_action_residual
from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


def read_options(kind: type, given: dict[str, Any] | None, method: str) -> Any:
    """An instance of the options class ``kind`` from `AlignOPSDConfig.method_options`.

    Choices come from a field's ``metadata["choices"]``; the type of a value must be that of the default.

    Raises:
        ValueError: for an unknown option, with the known ones; for a value of another type or outside the choices.
    """
    given = given or {}
    known = {field.name: field for field in fields(kind)}
    if unknown := sorted(set(given) - set(known)):
        options = f"known options: {', '.join(known)}" if known else "it has no options"
        raise ValueError(f"method_options[{unknown[0]!r}] is unknown to method {method!r}; {options}")
    values = {}
    for name, value in given.items():
        place = f"method_options[{name!r}]={value!r} of method {method!r}"
        choices, wanted = known[name].metadata.get("choices"), type(known[name].default)
        if choices and value not in choices:
            raise ValueError(f"{place}: choose one of {', '.join(map(repr, choices))}")
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ValueError(f"{place} must be of type {wanted.__name__}")
        if wanted in (int, float) and value < 0:
            raise ValueError(f"{place} must not be negative")
        values[name] = value
    return kind(**values)


class Baseline(Method):
    """Outcome advantages from the group's rewards, as `AlignOPSDConfig.group_statistics`, ``scale_rewards`` and
    ``invalid_action_penalty`` say. A subclass adds token weights (`weigh`) or an auxiliary loss (`targets`)."""

    Options: ClassVar[type] = NoOptions

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.options = read_options(self.Options, config.method_options, self.name)

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        advantage = self.outcome(batch)
        return Credit(self.per_token(batch, advantage[:, None]), trace={"outcome_advantage": advantage})

    def outcome(self, batch: TurnBatch) -> torch.Tensor:
        """A of each turn's rollout, ``(M,)`` float64, without the penalty on invalid actions."""
        return group_advantage(
            batch.reward,
            batch.task,
            batch.rollout,
            statistics=self.config.group_statistics,
            scale=self.config.scale_rewards == "group",
        )

    def per_token(self, batch: TurnBatch, values: torch.Tensor) -> torch.Tensor:
        """``(M, 1)`` or ``(M, L)`` advantages plus the residual of invalid actions, on optimised tokens, float32."""
        if self.config.invalid_action_penalty:
            scale = self.config.scale_rewards == "group"
            penalty = self.config.invalid_action_penalty
            residual = invalid_action_residual(batch.reward, batch.action_valid, batch.task, penalty, scale)
            values = values + residual[:, None]
        return torch.where(batch.policy_mask, values, 0.0).float()


def identity_scores(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """l+ of every turn under its own privileged view, ``(M, L)`` float32, 0 outside the mask."""
    rows = torch.arange(len(batch), device=batch.task.device)
    return teacher.score(batch, rows, rows)


def identity_gap(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """delta = l+ - l of the rollout snapshot, ``(M, L)`` float32, 0 outside the mask."""
    return (identity_scores(batch, teacher) - batch.student_log_probs) * batch.policy_mask


def mean_over(batch: TurnBatch, values: torch.Tensor) -> float:
    """Mean over the optimised tokens of this process, for metrics; 0 without any."""
    return float((values * batch.policy_mask).sum() / batch.policy_mask.sum().clamp_min(1))

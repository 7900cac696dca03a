"""Common parts of the baselines: options, outcome advantage, and the teacher's log-probs of the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from alignopsd_trl.common.options import as_mapping, read_options
from alignopsd_trl.methods.advantages import token_advantages
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.grpo import GRPO, OutcomeAdvantage, imitated
from alignopsd_trl.methods.token_gaps import token_gaps
from alignopsd_trl.turns import TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Baseline(GRPO):
    """A method that starts from GRPO's outcome advantages and has options of its own.

    ``group_statistics``, ``scale_rewards`` and ``invalid_action_penalty`` of the config mean the same as for GRPO. The
    penalty's residual is added after the method's weights.
    """

    Options: ClassVar[type] = NoOptions

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.options = read_options(self.Options, as_mapping(config.method_options), f"method {self.name!r}")


def credit_of(
    batch: TurnBatch,
    found: OutcomeAdvantage,
    shaped: torch.Tensor,
    metrics: dict[str, float],
    trace: dict[str, torch.Tensor],
    gap: torch.Tensor | None = None,
) -> Credit:
    """Makes the credit of a baseline.

    Args:
        found: the outcome advantage, recorded as ``outcome_advantage``, with its metrics and the residual of invalid
            actions.
        shaped: ``(M,)`` or ``(M, L)``, the method's own advantages. `checked_credit` records their mean over each
            turn's tokens as ``advantage``.
        metrics, trace: further metrics, and columns of the records.
        gap: ``(M, L)``, recorded token by token.
    """
    residual = {} if found.residual is None else {"residual": found.residual}
    columns = {"outcome_advantage": found.advantage} | residual | trace
    return Credit(
        token_advantages(shaped, batch.policy_mask, found.residual),
        found.metrics | metrics,
        trace={name: column.tolist() for name, column in columns.items()} | token_gaps(batch, identity=gap),
    )


def step_credit(
    batch: TurnBatch,
    found: OutcomeAdvantage,
    shaped: torch.Tensor,
    steps: torch.Tensor,
    state: torch.Tensor,
    trace: dict[str, torch.Tensor] | None = None,
) -> Credit:
    """Makes the credit of a method that compares turns which start in the same state. Advantages become 0 in a task
    with a single rollout. ``credit/shared_state_share`` is the share of turns whose state another turn has too.

    Args:
        shaped: ``(M,)`` the method's advantage of each turn.
        steps: ``(M,)`` the part of it that comes from the comparison, for the records.
        state: ``(M,)`` int64; turns of equal numbers start in the same state.
        trace: further columns of the records, ``(M,)`` each.
    """
    shaped = imitated(batch, shaped.masked_fill(batch.groups.siblings < 2, 0.0))
    shared = torch.bincount(state)[state] > 1
    metrics = {"credit/shared_state_share": float(shared.double().mean())} if len(batch) else {}
    return credit_of(batch, found, shaped, metrics, {"step_advantage": steps, "state_group": state} | (trace or {}))


def identity_scores(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """Returns l+ of every turn under its own privileged view, ``(M, L)`` float32, 0 outside the mask."""
    rows = torch.arange(len(batch), device=batch.task.device)
    return teacher.score(batch, rows, rows)


def identity_gap(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """Returns delta, ``(M, L)`` float32: the log-prob of each token under the turn's own privileged view minus that of
    the policy that sampled it; 0 for tokens that are not scored."""
    assert batch.student_log_probs is not None, "the method declares needs_student_log_probs"
    return (identity_scores(batch, teacher) - batch.student_log_probs) * batch.scored_mask


def token_mean(batch: TurnBatch, name: str, values: torch.Tensor) -> dict[str, float]:
    """Returns a metric, the mean over the scored tokens of this process; empty without any."""
    return {name: float(values[batch.scored_mask].mean())} if batch.scored_mask.any() else {}

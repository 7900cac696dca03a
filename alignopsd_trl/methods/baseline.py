"""What the baselines share: their options, the outcome advantage, and the teacher's view of the sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from alignopsd_trl.methods.advantages import token_advantages
from alignopsd_trl.methods.base import Credit, Teacher
from alignopsd_trl.methods.grpo import GRPO, Outcome
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


class Baseline(GRPO):
    """GRPO's outcome advantages, with options of the method's own.

    ``group_statistics``, ``scale_rewards`` and ``invalid_action_penalty`` of the config mean for every method what they
    mean for GRPO: the penalty is a residual that is added after a method's weights.
    """

    Options: ClassVar[type] = NoOptions

    def __init__(self, config: AlignOPSDConfig):
        super().__init__(config)
        self.options = read_options(self.Options, config.method_options, self.name)


def credit_of(
    batch: TurnBatch, found: Outcome, shaped: torch.Tensor, metrics: dict[str, float], trace: dict[str, torch.Tensor]
) -> Credit:
    """Credit from ``(M,)`` or ``(M, L)`` shaped advantages, with the residual of ``found``, its metrics and trace.

    The column ``outcome_advantage`` is A, that of ``found``. What the method made of it is the column ``advantage``,
    which `checked_credit` adds.
    """
    residual = {} if found.residual is None else {"residual": found.residual}
    columns = {"outcome_advantage": found.advantage} | residual | trace
    return Credit(
        token_advantages(shaped, batch.policy_mask, found.residual),
        found.metrics | metrics,
        trace={name: column.tolist() for name, column in columns.items()},
    )


def identity_scores(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """l+ of every turn under its own privileged view, ``(M, L)`` float32, 0 outside the mask."""
    rows = torch.arange(len(batch), device=batch.task.device)
    return teacher.score(batch, rows, rows)


def identity_gap(batch: TurnBatch, teacher: Teacher) -> torch.Tensor:
    """delta = l+ - l of the rollout snapshot, ``(M, L)`` float32, 0 outside the mask."""
    return (identity_scores(batch, teacher) - batch.student_log_probs) * batch.policy_mask


def token_mean(batch: TurnBatch, name: str, values: torch.Tensor) -> dict[str, float]:
    """A metric: the mean over the optimised tokens of this process; nothing where there are none."""
    return {name: float(values[batch.policy_mask].mean())} if batch.policy_mask.any() else {}

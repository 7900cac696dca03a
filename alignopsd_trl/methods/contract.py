"""Checks a method: it may use only the signals that it declares, and its credit must be valid.

The trainer calls `checked_credit`. Without it, a method that forgets to declare its teacher would train on zeros
(without skills the teacher is the student), and one that returns NaN would log a loss of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch

from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.turns import TurnBatch

_NEEDS = dict.fromkeys(("score", "vocabulary", "thoughts"), "needs_teacher") | {"encode": "needs_encoder"}
"""What each call of a `Teacher` needs; `gather` is free to all."""


class MethodError(RuntimeError):
    """Raised for a method that breaks the contract. The message names the method and what to change."""


def checked_credit(method: Method, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
    """Calls `Method.assign` and checks its result.

    The trace of the result has a column ``advantage``: the method's own if it records one, else the mean of its token
    advantages over each turn's optimised tokens. ``step`` counts rollout rounds from 0.

    Raises:
        MethodError: for a call that was not declared, or credit of a wrong shape, dtype or value.
    """
    declared: Any = DeclaredTeacher(teacher, method)
    credit = method.assign(_declared_batch(method, batch), declared, step)
    _check_credit(credit, batch, method.name)
    tokens = batch.policy_mask.sum(1).clamp_min(1)
    credit.trace.setdefault("advantage", (credit.advantages.sum(1) / tokens).tolist())
    return credit


def _undeclared(method: Method, use: str, need: str) -> MethodError:
    kind = type(method)
    return MethodError(
        f"method {method.name!r} uses {use}, which it did not declare, so it was not computed. "
        f"Add this line to class {kind.__qualname__} of {kind.__module__}:\n    {need} = True"
    )


class DeclaredTeacher:
    """A [`Teacher`] that raises for calls that the method does not declare."""

    def __init__(self, teacher: Teacher, method: Method):
        self._teacher, self._method = teacher, method

    def __getattr__(self, call: str) -> Any:
        need = _NEEDS.get(call)
        if need is not None and not getattr(self._method, need):
            raise _undeclared(self._method, f"teacher.{call}", need)
        return getattr(self._teacher, call)


def _declared_batch(method: Method, batch: TurnBatch) -> TurnBatch:
    """Returns a batch that raises when the method reads log-probs that it did not declare."""

    class Unscored(TurnBatch):
        @property
        def student_log_probs(self) -> torch.Tensor:  # type: ignore[override]
            raise _undeclared(method, "batch.student_log_probs", "needs_student_log_probs")

    if method.needs_student_log_probs and batch.student_log_probs is None:
        raise MethodError(
            f"method {method.name!r} needs batch.student_log_probs: score the responses under their own prompts first"
        )
    if method.needs_student_log_probs or method.takes_student_log_probs:
        return batch
    unscored = object.__new__(Unscored)
    vars(unscored).update(vars(batch))
    return unscored


# Credit


def _check_credit(credit: Credit, batch: TurnBatch, name: str) -> None:
    """Raises [`MethodError`] unless the ``credit`` of method ``name`` fits the batch and is valid, see [`Credit`]."""

    def fail(problem: str) -> None:
        raise MethodError(f"method {name!r}: {problem}")

    if not isinstance(credit, Credit):
        fail(f"assign must return a Credit, not {type(credit).__name__}")
    mask, advantages = batch.policy_mask, credit.advantages
    _check_tensor("Credit.advantages", advantages, mask, (2,), fail)
    if advantages.dtype != torch.float32:
        fail(f"advantages are {advantages.dtype}; they must be torch.float32, as token_advantages() makes them")
    if bool((advantages[~mask] != 0).any()):
        row = int((advantages.masked_fill(mask, 0.0) != 0).any(1).nonzero()[0])
        fail(f"advantages must be 0 outside batch.policy_mask; row {row} has others, see token_advantages()")
    for key, target in credit.targets.items():
        _check_tensor(f"Credit.targets[{key!r}]", target, mask, (2, 3), fail)
    for key, value in credit.metrics.items():
        if not isinstance(value, Real):
            fail(f"metrics[{key!r}] must be a number, not {type(value).__name__}; use float(...)")
    for key, column in credit.trace.items():
        if len(column) != len(batch):
            fail(f"trace[{key!r}] has {len(column)} values for {len(batch)} turns; a column has one for each turn")


def _check_tensor(
    place: str, value: Any, mask: torch.Tensor, dimensions: Sequence[int], fail: Callable[[str], None]
) -> None:
    if not isinstance(value, torch.Tensor):
        fail(f"{place} must be a tensor, not {type(value).__name__}")
    if value.requires_grad:
        fail(f"{place} must not carry a gradient: credit is a constant of the loss; use .detach()")
    if value.device != mask.device:
        fail(f"{place} must be on the batch's device {mask.device}, not on {value.device}")
    if value.dim() not in dimensions or value.shape[:2] != mask.shape:
        fail(
            f"{place} has the shape {tuple(value.shape)}; it must {'be' if len(dimensions) == 1 else 'begin with'} "
            f"{tuple(mask.shape)}, as batch.policy_mask, with one value per response token; token_advantages() spreads "
            "one value per turn"
        )
    bad = ~value.isfinite()
    if bool(bad.any()):
        row = int(bad.flatten(1).any(1).nonzero()[0])
        fail(f"{place} must be finite; {int(bad.sum())} of {value.numel()} values are not, the first in row {row}")

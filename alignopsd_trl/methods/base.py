"""The four hooks of a method, and the registry that finds a method by its name.

The trainer plays the rollouts, builds the `TurnBatch`, asks `assign` for credit, and adds `auxiliary` to TRL's loss.
It learns nothing else about a method; what a method does not say it needs is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from alignopsd_trl.turns import Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


class Teacher(Protocol):
    """The privileged view of the same policy, and what else a method may ask for. All of it without gradients and
    with the snapshot that made the rollouts. Every process must make the same calls in the same order."""

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Log-probs of the responses of turns ``target`` under the privileged prompts of turns ``source``.

        Args:
            source, target: ``(P,)`` int64 row numbers; ``source == target`` is the identity view.

        Returns:
            ``(P, L)`` float32, 0 where the target's mask is 0.
        """

    def vocabulary(self, batch: TurnBatch, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The privileged view's ``count`` largest logits at each position of each turn's own response.

        Returns:
            Token ids int64 and logits float32, ``(M, L, count)`` each, 0 past a response's end; not divided by a
            temperature. ``count`` is cut to the size of the vocabulary.
        """

    def thoughts(self, batch: TurnBatch) -> list[Thought]:
        """What the privileged view itself thinks and does at each of the M turns (one generation for all)."""

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """``(n, D)`` float32 embeddings of the frozen encoder; a zero row for an empty text."""

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The one-dimensional tensors of all processes, concatenated; lengths may differ."""


@dataclass
class Credit:
    """What a method gives back.

    Attributes:
        advantages: ``(M, L)`` float32, 0 outside the policy mask, without gradient.
        metrics: scalars of this process (logged as means over processes).
        targets: ``(M, L)`` or ``(M, L, K)`` tensors that `Method.auxiliary` will get back row by row; empty if there is
            no such loss. ``vocabulary_ids`` among them asks for the live logits of these tokens as ``vocabulary``.
        trace: per-turn columns for the records: lists or tensors of length M.
    """

    advantages: torch.Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    targets: dict[str, torch.Tensor] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Coefficients:
    """Weights of the clipped policy loss and of the auxiliary loss at one step."""

    policy: float = 1.0
    auxiliary: float = 0.0


class Method:
    """One row of the results table. A subclass overrides what differs from plain GRPO.

    Class attributes:
        name: of the row, the key of the registry and of ``--method``.
        trains: whether there is anything to train (`False` for rows that only evaluate).
        skills_in_rollout: the policy itself sees the skill while it plays and is trained.
        skills_in_evaluation: the row is evaluated with skills (the starred rows).
        needs_student_log_probs: ``batch.student_log_probs`` must be there when `assign` is called.
        needs_teacher: the method asks the `Teacher` for scores or thoughts, so skills must be there.
    """

    name: ClassVar[str]
    trains: ClassVar[bool] = True
    skills_in_rollout: ClassVar[bool] = False
    skills_in_evaluation: ClassVar[bool] = False
    needs_student_log_probs: bool = False
    needs_teacher: bool = False
    needs_encoder: bool = False

    def __init__(self, config: AlignOPSDConfig):
        self.config = config

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        """Token advantages and what goes with them. ``step`` counts rollout rounds from 0."""
        raise NotImplementedError

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """The auxiliary loss per token on the live log-probs, before masking and normalising.

        Args:
            targets: the rows of `Credit.targets`, ``(R, L)`` or ``(R, L, K)`` each; with ``vocabulary_ids`` also
                ``vocabulary``, the current policy's logits of those tokens, with gradient (one more forward).
            log_probs: ``(R, L)`` of the current policy, with gradient: the ones TRL computed for its own loss.
            old_log_probs: ``(R, L)`` of the rollout snapshot, without gradient.

        Returns:
            ``(R, L)``.
        """
        raise NotImplementedError

    def coefficients(self, step: int) -> Coefficients:
        """Weights of the losses at a rollout round."""
        return Coefficients()


_REGISTRY: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Class decorator: makes a method known by its ``name``.

    Raises:
        ValueError: if the name is taken by another class.
    """
    taken = _REGISTRY.setdefault(method.name, method)
    if taken.__qualname__ != method.__qualname__:
        raise ValueError(f"method name {method.name!r} is taken by {taken.__module__}.{taken.__qualname__}")
    return method


def _discover() -> None:
    package = import_module("alignopsd_trl.methods")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)


def method_names() -> list[str]:
    """All registered names, sorted. A file in this folder registers itself by being there."""
    _discover()
    return sorted(_REGISTRY)


def get_method(name: str) -> type[Method]:
    """The method class of a name.

    Raises:
        ValueError: for an unknown name, with the known ones.
    """
    _discover()
    if name not in _REGISTRY:
        raise ValueError(f"method={name!r} is unknown; choose one of {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name]

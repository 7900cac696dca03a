"""What a method is: two hooks, and what it declares that it needs.

The trainer plays the rollouts, builds the `TurnBatch`, calls `assign` for credit, and adds `auxiliary` to TRL's loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from alignopsd_trl.turns import Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


class Teacher(Protocol):
    """The privileged view of the policy and other signals for methods, without gradients and on the snapshot that made
    the rollouts. Every process must make the same calls in the same order."""

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores the responses of turns ``target`` under the privileged prompts of turns ``source``.

        Args:
            source, target: ``(P,)`` int64 row numbers; ``source == target`` is the identity view.

        Returns:
            Log-probs ``(P, L)`` float32, 0 where the target's mask is 0.
        """

    def vocabulary(
        self,
        batch: TurnBatch,
        count: int,
        sources: torch.Tensor | None = None,
        mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the privileged view's ``count`` largest logits at each position of each turn's own response.

        Args:
            sources: ``(M, K)`` int64, turns under whose privileged prompts the response is scored too; padded with -1.
            mix: turns ``(n,)`` and logits ``(n, 1 + k, V)`` of the turn's own view and of its k sources -> their
                mixture ``(n, V)``, whose largest logits are returned; needed with ``sources``.

        Returns:
            Token ids int64 and logits float32, ``(M, L, count)`` each, 0 past a response's end; not divided by a
            temperature. ``count`` is cut to the size of the vocabulary.
        """

    def thoughts(self, batch: TurnBatch, rows: torch.Tensor | None = None, actions: bool = True) -> list[Thought]:
        """Samples thinking and action of the privileged view at each of the M turns, or at the turns ``rows``, ``(R,)``
        int64, in one generation. With ``actions=False`` it samples thinking alone, and all actions are blank."""

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Returns the frozen encoder's embeddings, ``(n, D)`` float32; a zero row for an empty text."""

    def gather(self, values: torch.Tensor, /) -> torch.Tensor:
        """Concatenates the one-dimensional tensors of all processes; lengths may differ."""


@dataclass
class Credit:
    """Credit for a batch of M turns of at most L response tokens.

    Args:
        advantages: ``(M, L)`` float32 on the batch's device: finite, 0 outside the policy mask, without gradient.
        metrics: numbers of this process for the log; the mean over processes is logged.
        targets: ``(M, L)`` or ``(M, L, K)`` tensors, finite and without gradient, whose rows `Method.auxiliary` gets;
            empty without such a loss. With ``vocabulary_ids`` it also gets the live logits of these tokens as
            ``vocabulary``.
        trace: columns for the records, one value for each turn: lists or tensors of length M.
    """

    advantages: torch.Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    targets: dict[str, torch.Tensor] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)


class Method:
    """One row of the results table. A subclass overrides `assign`, and `auxiliary` if it adds a loss.

    Args:
        config: of the run, the only argument. What an instance declares may depend on it.

    A signal that a method does not declare is not computed; its use raises (`alignopsd_trl.methods.contract`).
    """

    name: ClassVar[str]
    """Key of the registry and of ``--method``."""
    trains: ClassVar[bool] = True
    """`False`: the row only evaluates."""
    skills_in_rollout: ClassVar[bool] = False
    """Whether the policy itself sees the skill while it plays and learns."""
    skills_in_evaluation: ClassVar[bool] = False
    """Whether the row is evaluated with skills (the starred rows)."""
    needs_student_log_probs: bool = False
    """Whether `assign` reads ``batch.student_log_probs``."""
    takes_student_log_probs: bool = False
    """Whether `assign` reads them if they were computed for another reason, and works without them if they are
    `None`."""
    needs_teacher: bool = False
    """Whether `assign` calls `Teacher.score`, `vocabulary` or `thoughts`, so that there must be skills."""
    needs_encoder: bool = False
    """Whether `assign` calls `Teacher.encode`."""
    needs_turn_advantages: bool = False
    """Whether `assign` reads ``batch.turn_advantages``, from Monte Carlo rollouts that the policy plays."""
    weighs_outcome: bool = False
    """Whether credit only weighs GRPO's outcome advantage, so that turns where that is 0 are not scored."""
    policy_weight: float = 1.0
    """Coefficient of the clipped policy loss; it multiplies the advantages."""
    auxiliary_weight: float = 0.0
    """Coefficient of the auxiliary loss."""
    kept_logits: int = 0
    """Logits that targets hold at each position, for the estimate of memory alone."""
    options: Any = None
    """The method's options, read from `AlignOPSDConfig.method_options`."""

    def __init__(self, config: AlignOPSDConfig):
        self.config = config

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        """Assigns token advantages. ``step`` counts rollout rounds from 0."""
        raise NotImplementedError

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """Returns the auxiliary loss per token on the live log-probs, before masking and normalising.

        Args:
            targets: the rows of `Credit.targets`, ``(R, L)`` or ``(R, L, K)`` each; with ``vocabulary_ids`` also
                ``vocabulary``, the current policy's logits of those tokens, with gradient (one more forward).
            log_probs: ``(R, L)`` of the current policy, with gradient, from TRL's own forward.
            old_log_probs: ``(R, L)`` of the rollout snapshot, without gradient.

        Returns:
            ``(R, L)``.
        """
        raise NotImplementedError

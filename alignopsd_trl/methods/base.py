"""What a method is: two hooks, and what it declares that it needs; its check, and its name.

The trainer plays the rollouts, builds the `TurnBatch`, calls `assign` for credit, and adds `auxiliary` to TRL's loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch

from alignopsd_trl.common.errors import RunEnded
from alignopsd_trl.common.options import near
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.turns import Thought, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.config import AlignOPSDConfig


class Teacher(Protocol):
    """The privileged view of the policy and other signals for methods, without gradients and on the snapshot that made
    the rollouts. Every process must make the same calls in the same order."""

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns log-probs ``(P, L)`` float32 of the responses of turns ``target`` under the privileged prompts of
        turns ``source``, 0 where the target's mask is 0.

        Args:
            source, target: ``(P,)`` int64 row numbers; ``source == target`` is the identity view.
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

    A signal that a method does not declare is not computed; its use raises [`MethodError`].
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

    def at(self, step: int) -> Method:
        """Returns the method of round ``step``, which counts from 0: itself, or another one from some round on. What
        that one does not declare is no longer computed. The methods of all rounds are made once, with the run's."""
        return self

    def assign(self, batch: TurnBatch, teacher: Teacher, step: int) -> Credit:
        """Assigns token advantages. ``step`` counts rollout rounds from 0."""
        raise NotImplementedError

    def auxiliary(
        self, targets: dict[str, torch.Tensor], log_probs: torch.Tensor, old_log_probs: torch.Tensor
    ) -> torch.Tensor:
        """Returns the auxiliary loss per token on the live log-probs, ``(R, L)``, before masking and normalising.

        Args:
            targets: the rows of `Credit.targets`, ``(R, L)`` or ``(R, L, K)`` each; with ``vocabulary_ids`` also
                ``vocabulary``, the current policy's logits of those tokens, with gradient (one more forward).
            log_probs: ``(R, L)`` of the current policy, with gradient, from TRL's own forward.
            old_log_probs: ``(R, L)`` of the rollout snapshot, without gradient.
        """
        raise NotImplementedError


# The check of a method. Without it, a method that forgets to declare its teacher would train on zeros (without skills
# the teacher is the student), and one that returns NaN would log a loss of 0.


_NEEDS = dict.fromkeys(("score", "vocabulary", "thoughts"), "needs_teacher") | {"encode": "needs_encoder"}
"""What each call of a `Teacher` needs; `gather` is free to all."""


class MethodError(RunEnded):
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


# Methods by name, in the package and in the user's modules


Kind = TypeVar("Kind", bound=type[Method])

_REGISTRY: dict[str, type[Method]] = {}


def register(method: Kind) -> Kind:
    """Registers a method class by its ``name``; used as a decorator.

    A class that is defined again, as when a notebook's cell is run twice, replaces its earlier definition.

    Raises:
        ValueError: if it has no name, or if the name is taken by another class.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{_place(method)} needs a name to be registered by: add a line such as  name = 'my_method'")
    taken = _REGISTRY.get(name, method)
    if _place(taken) != _place(method):
        raise ValueError(f"method name {name!r} is taken by {_place(taken)}; give {_place(method)} another name")
    _REGISTRY[name] = method
    return method


def _place(method: type[Method]) -> str:
    return f"{method.__module__}.{method.__qualname__}"


def method_names() -> list[str]:
    """Returns all registered names, sorted: the package's own, and those of modules that were imported."""
    _discover()
    return sorted(_REGISTRY)


def get_method(name: str) -> type[Method]:
    """Returns a method class by its name or by the module that registers it.

    Args:
        name: a registered name such as ``"grpo"``; or a module that registers one method, such as
            ``"my_package.my_method"``, which is then imported, from the current folder too; or ``"module:name"`` for a
            module that registers several.

    Raises:
        ValueError: for an unknown name, with the known ones; for a module that registers no method, or several.
    """
    _discover()
    return _REGISTRY[name] if name in _REGISTRY else _from_module(name)


def _discover() -> None:
    package = import_module("alignopsd_trl.methods")
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)


def _from_module(name: str) -> type[Method]:
    if not isinstance(name, str):
        raise ValueError(f"method={name!r} must be text; in YAML write it in quotes")
    module, _, chosen = name.partition(":")
    if find_module(module) is None:
        known = sorted(_REGISTRY)
        raise ValueError(
            f"method={name!r} is unknown; {near(name, known)}choose one of {', '.join(known)}, or name the module that "
            "registers your own, such as my_package.my_method (it must be importable from where you run)"
        )
    inside = f"{module}."  # the module or, if it is a package, its modules
    own = {kind.name: kind for kind in _REGISTRY.values() if f"{kind.__module__}.".startswith(inside)}
    if chosen in own:
        return own[chosen]
    if len(own) == 1 and not chosen:
        return next(iter(own.values()))
    if not own:
        raise ValueError(f"method={name!r}: module {module!r} registers no method; decorate its class with @register")
    raise ValueError(
        f"method={name!r}: module {module!r} registers {', '.join(sorted(own))}; choose one, as {module}:{min(own)}"
    )

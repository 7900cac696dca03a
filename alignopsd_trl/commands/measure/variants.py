"""Methods under several settings, whose credit of one batch shares a teacher's scores and reasoning traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from alignopsd_trl.commands.launch.values import read_value
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit, Method, Teacher, get_method
from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES
from alignopsd_trl.turns import Thought, TurnBatch

Configure = Callable[[str, Mapping[str, Any]], AlignOPSDConfig]
"""(method, settings) -> the configuration of the method under these settings."""


def make_variants(configure: Configure, methods: Sequence[str], vary: Sequence[Mapping[str, Any]]) -> dict[str, Method]:
    """Makes variants by their labels: every method as configured, then with each of the settings in ``vary``.

    An option of AlignOPSD makes variants of AlignOPSD alone; ``METHOD.OPTION`` makes variants of that method. Raises
    `ValueError` for an unknown method or setting, for a setting that changes more than credit, for methods that train
    nothing or are A_MC itself, and for methods with skills in the policy's own prompt beside methods without.
    """
    _check(methods)
    found = {name: get_method(name)(configure(name, {})) for name in methods}
    for settings in vary:
        name = _method_of(settings, methods)
        method = get_method(name)(configure(name, settings))
        found[" ".join([name, *(_shown(method, one) for one in settings)])] = method
    return found


def read_vary(text: str) -> list[dict[str, Any]]:
    """Reads ``credit_temperature=0.05,0.1`` as two settings, ``rectify=false+allocation=turn`` as one of two
    options."""
    several = {}
    for part in text.split("+"):
        name, equals, values = part.partition("=")
        if not equals or not name or not values:
            raise ValueError(f"vary={text!r} is not NAME=VALUE,VALUE or NAME=VALUE+NAME=VALUE")
        several[name.strip()] = [read_value(value, f"--vary {text}") for value in values.split(",")]
    return [dict(zip(several, chosen, strict=True)) for chosen in product(*several.values())]


def _shown(method: Method, name: str) -> str:
    """Returns ``NAME=VALUE`` of a setting, with the method's value in one spelling."""
    option = name.partition(".")[2]
    return f"{option}={getattr(method.options, option)}" if option else f"{name}={getattr(method.config, name)}"


def _method_of(settings: Mapping[str, Any], methods: Sequence[str]) -> str:
    for name in settings:
        if "." not in name and name not in OPTION_NAMES:
            raise ValueError(
                f"vary: {name!r} is nothing that changes credit alone, so its row would be measured on play that is "
                f"not its own; --set it for all rows, in a folder of its own. What may be varied: METHOD.OPTION, "
                f"{', '.join(OPTION_NAMES)}"
            )
    owner, *others = sorted({name.partition(".")[0] if "." in name else "align_opsd" for name in settings})
    if others:
        raise ValueError(f"vary={dict(settings)} mixes settings of {owner}, {', '.join(others)}; vary them apart")
    if owner not in methods:
        raise ValueError(f"vary={dict(settings)} is about {owner!r}, which is not among the methods {list(methods)}")
    return owner


def _check(methods: Sequence[str]) -> None:
    if not methods:
        raise ValueError("methods is empty; name at least one, such as 'grpo'")
    found = {name: get_method(name) for name in methods}
    for name, method in found.items():
        if not method.trains:
            raise ValueError(f"method {name!r} trains nothing, so it gives no credit; leave it out")
        if method.needs_turn_advantages:
            raise ValueError(f"method {name!r} is what the others are measured against here; leave it out")
    skilled = [name for name, method in found.items() if method.skills_in_rollout]
    if 0 < len(skilled) < len(found):
        raise ValueError(
            f"{', '.join(skilled)} play with the skill in the policy's own prompt, so that their rollouts are not "
            "those of the other methods; measure them in a run of their own"
        )


class CachedTeacher:
    """A cache of a `Teacher`'s results for one batch. Privileged reasoning traces are sampled once, so that all
    variants see the same ones."""

    def __init__(self, teacher: Teacher):
        self._teacher = teacher
        self._thoughts: list[Thought] | None = None
        self._scores: dict[tuple[int, int], torch.Tensor] = {}
        self._vectors: dict[str, torch.Tensor] = {}

    def score(self, batch: TurnBatch, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        views = list(zip(source.tolist(), target.tolist(), strict=True))
        if new := [view for view in dict.fromkeys(views) if view not in self._scores]:
            rows = self._teacher.score(batch, *(torch.tensor(side) for side in zip(*new, strict=True)))
            self._scores |= zip(new, rows, strict=True)
        if not views:
            return torch.zeros(batch.policy_mask.shape, device=batch.policy_mask.device)[:0]
        return torch.stack([self._scores[view] for view in views])

    def thoughts(self, batch: TurnBatch, rows: torch.Tensor | None = None, actions: bool = True) -> list[Thought]:
        if self._thoughts is None:
            self._thoughts = self._teacher.thoughts(batch)
        found = self._thoughts if rows is None else [self._thoughts[row] for row in rows.tolist()]
        return found if actions else [replace(thought, action="") for thought in found]

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            self._vectors |= zip(new, self._teacher.encode(new), strict=True)
        return torch.stack([self._vectors[text] for text in texts]) if texts else self._teacher.encode([])

    def __getattr__(self, call: str) -> Any:  # what is not kept: `vocabulary`, `gather`
        return getattr(self._teacher, call)


def turn_credit(credit: Credit, batch: TurnBatch) -> torch.Tensor:
    """Computes ``(M,)`` float64: the mean advantage of a turn's optimised tokens."""
    tokens = batch.policy_mask.sum(1).clamp(min=1)
    return credit.advantages.double().sum(1) / tokens

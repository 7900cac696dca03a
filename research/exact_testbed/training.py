"""Training in the arena: what some credit makes of a scripted policy, by its exact probability of winning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from alignopsd_trl.encoder import load_encoder
from research.exact_testbed.games import ExactTeacher, Game, Scripted, make_batch, sample_groups
from research.exact_testbed.measuring import credit_of

TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "align_opsd": ("align_opsd", {}),
    "align_opsd T .1": ("align_opsd", {"credit_temperature": 0.1}),
    "align_opsd T .1, gamma_H .95": ("align_opsd", {"credit_temperature": 0.1, "similarity_threshold": 0.95}),
    "align_opsd T .1, gamma_H .95, no filter": (
        "align_opsd",
        {"credit_temperature": 0.1, "similarity_threshold": 0.95, "action_filter": "none"},
    ),
    "spread .3": ("align_opsd", {"credit_spread": 0.3}),
    "spread .3, no rectification": ("align_opsd", {"credit_spread": 0.3, "rectify": False}),
    "no rectification": ("align_opsd", {"rectify": False}),
    "no rectification T .1": ("align_opsd", {"rectify": False, "credit_temperature": 0.1}),
    "rlsd": ("rlsd", {}),
    "gigpo": ("gigpo", {}),
    "exact": ("exact", {}),
}
"""Methods and settings; ``exact`` is each turn's own advantage over the deviation of its group's rewards."""

Shopper = Callable[[Mapping[str, float]], Scripted]


def train(
    games: Sequence[Game],
    shopper: Shopper,
    care: Mapping[str, float],
    variant: tuple[str, Mapping[str, Any]],
    folder: Path,
    *,
    updates: int,
    rate: float,
    siblings: int,
    seed: int,
    encoder: str = "lexical",
) -> list[float]:
    """Mean probability of winning before the first update and after each.

    Args:
        games: expanded.
        shopper: from the care of each decision to a policy that offers the same choices.
        care: to begin with.
        variant: a method and its settings.
        updates, siblings: how often, and on how many episodes of each game.
        rate: length of a step in the logits of care. Only the direction of a gradient counts, as with Adam: larger
            credit is not faster.
        seed: of the episodes.
        encoder: of the thoughts.
    """
    logits = {name: math.log(value / (1 - value)) for name, value in care.items()}
    embed, won = load_encoder(encoder), []
    for update in range(updates + 1):
        policy = shopper({name: 1 / (1 + math.exp(-value)) for name, value in logits.items()})
        games = [game.under(policy) for game in games]
        won.append(sum(game.value for game in games) / len(games))
        if update == updates:
            return won
        draw = random.Random(f"{seed}/{update}")
        sampled = sample_groups(games, siblings, draw)
        batch = make_batch(sampled)
        credit = _credit(variant, sampled, batch, ExactTeacher(sampled, embed, draw), folder)
        gradient = sampled.gradient(batch.turns, credit)
        length = math.sqrt(sum(slope * slope for slope in gradient.values()))
        for name, slope in gradient.items():
            logits[name] += rate * slope / max(length, 1e-12)
    raise AssertionError("unreachable")


def _credit(variant: Any, sampled: Any, batch: Any, teacher: Any, folder: Path) -> np.ndarray:
    name, settings = variant
    if name != "exact":
        return credit_of(name, settings, batch, teacher, folder)
    groups, reward = batch.groups, batch.reward.double().numpy()
    first, task = (groups.position == 0).numpy(), groups.task.numpy()
    deviation = np.array([reward[first & (task == one)].std(ddof=1) for one in range(groups.tasks)])[task]
    return sampled.advantages(batch.turns) / np.where(deviation > 0, deviation, np.inf)


def difference(left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Mean of paired differences and half of its 95 % interval."""
    found = np.subtract(left, right)
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / math.sqrt(len(found))
    return float(found.mean()), float(half)

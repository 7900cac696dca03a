"""The names that the original's own unit tests import, as thin wrappers (WebShop facts 14)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from alignopsd_trl.environments.webshop.engine import reward
from alignopsd_trl.environments.webshop.engine.goals import weighted_index
from alignopsd_trl.environments.webshop.engine.nouns import Nouns, standin
from alignopsd_trl.environments.webshop.engine.tables import normalize_color, normalize_color_size

__all__ = [
    "get_attribute_reward",
    "get_option_reward",
    "get_reward",
    "get_type_reward",
    "normalize_color",
    "normalize_color_size",
    "random_idx",
]


def get_type_reward(
    purchased_product: Mapping[str, Any], goal: Mapping[str, Any], nouns: Nouns = standin
) -> dict[str, Any]:
    """Keys r_type, query_match, category_match, title_score."""
    return asdict(reward.type_match(purchased_product, goal, nouns))


def get_attribute_reward(purchased_product: Mapping[str, Any], goal: Mapping[str, Any]) -> tuple[float, int]:
    """The share of the goal's attributes that match, and their number."""
    count = reward.attribute_matches(purchased_product, goal)
    return count / len(goal["attributes"]), count


def get_option_reward(purchased_options: Iterable[str], goal_options: Sequence[Any]) -> tuple[float | None, int]:
    """The share of the goal's options that match (None if it has none), and their number."""
    wanted = list(goal_options)
    count = reward.option_matches(purchased_options, wanted)
    return (count / len(wanted) if wanted else None), count


def get_reward(
    purchased_product: Mapping[str, Any],
    goal: Mapping[str, Any],
    price: float,
    options: Mapping[str, str],
    verbose: bool = False,
    nouns: Nouns = standin,
) -> float | tuple[float, dict[str, Any]]:
    """The score of a purchase; with ``verbose`` also its breakdown."""
    total, breakdown = reward.score(purchased_product, goal, price, options, nouns)
    return (total, breakdown) if verbose else total


def random_idx(cum_weights: Sequence[float]) -> int:
    """A weighted draw from the process-wide generator, which the original's test seeds."""
    return weighted_index(cum_weights, random._inst)

"""The names that the original WebShop's unit tests import, as thin wrappers of the engine (WebShop facts 14).

The table of sizes is a fact of the original WebShop: MIT licence, (c) 2023 Princeton Natural Language Processing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from alignopsd_trl.environments.webshop.engine import reward
from alignopsd_trl.environments.webshop.engine.goals import weighted_index
from alignopsd_trl.environments.webshop.engine.nouns import Nouns, standin
from alignopsd_trl.environments.webshop.engine.tables import COLORS, normalize_color

__all__ = [
    "get_attribute_reward",
    "get_option_reward",
    "get_reward",
    "get_type_reward",
    "normalize_color",
    "normalize_color_size",
    "random_idx",
]

SIZES = (
    "xx-large", "3x-large", "4x-large", "5x-large", "x-large", "x-small", "medium", "large", "small", "queen", "twin",
    "full", "king", "one size", "pack", "(.*)neck(.*)sleeve", r"(.*) women \| (.*) men", "(.*)w x(.*)l",
    "(.*)w by (.*)l", "(.*)w x(.*)h", "(.*)wide", "(.*)x-wide", "(.*)narrow", "(.*)petite", "(.*)inch", "(.*)plus",
    "(.*)mm", "women(.*)", "(.*)x(.*)", "(.*)ft", "(.*)feet", "(.*)meter", "(.*)yards", r"(.*)\*(.*)", r"(.*)\-(.*)",
    r'(\d+)"$', r"(\d+)f$", r"(\d+)m$", r"(\d+)cm$", r"(\d+)g$",
)  # fmt: skip
NOT_MATCHED = "not_matched"
_SIZE_PATTERNS = tuple(re.compile(size) for size in SIZES)


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


def normalize_color_size(prices: Iterable[tuple[str, str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Colour and size classes of the (asin, colour, size) keys of a price table, for offline statistics."""
    colors, sizes = {"N.A.": NOT_MATCHED}, {"N.A.": NOT_MATCHED}
    for _, color, size in prices:
        colors[color.lower()] = next((word for word in COLORS if word in color.lower()), NOT_MATCHED)
        sizes[size.lower()] = _size_class(size.lower())
    return {**colors, "N.A.": NOT_MATCHED}, {**sizes, "N.A.": NOT_MATCHED}


def _size_class(size: str) -> str:
    for pattern in _SIZE_PATTERNS:
        if pattern.search(size):
            return pattern.pattern
    return "numeric_size" if size.replace(".", "", 1).isdigit() else NOT_MATCHED

"""The score of a purchase, from 0 to 1, with its parts (WebShop facts 9).

    total = r_type * (n_attributes + n_options + r_price) / (goal attributes + goal options + 1)

evaluated as written, so that scores equal those of the reference bit for bit. Products and goals are plain mappings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from alignopsd_trl.environments.webshop.engine.fuzzy import similar
from alignopsd_trl.environments.webshop.engine.nouns import Nouns
from alignopsd_trl.environments.webshop.engine.tables import normalize_color


@dataclass(frozen=True)
class TypeMatch:
    """The match of product kinds, with its reasons."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float


def type_match(purchased: Mapping[str, Any], goal: Mapping[str, Any], nouns: Nouns) -> TypeMatch:
    """Returns the factor for the kind of product: 1, 0.5, 0.1 or 0 by query, category path and common title nouns."""
    query = purchased["query"] == goal["query"]
    category = len(_path(purchased["product_category"]) & _path(goal["product_category"])) >= 2
    wanted = nouns(goal["name"])
    common = set(nouns(purchased["name"])) & set(wanted)
    title = len(common) / len(wanted) if wanted else 0.2
    factor = 1.0 if query or category or title > 0.2 else 0.5
    if title < 0.1:
        factor = 0.1
    if title == 0:
        factor = 0.0
    return TypeMatch(factor, query, category, title)


@lru_cache(maxsize=1 << 14)
def _path(category: str) -> frozenset[str]:
    return frozenset(part.strip() for part in category.split("›"))


def attribute_matches(purchased: Mapping[str, Any], goal: Mapping[str, Any]) -> int:
    """Counts the goal's attributes that the product lists (fuzzily) or mentions (literally)."""
    return sum(_has_attribute(purchased, attribute) for attribute in goal["attributes"])


def _has_attribute(purchased: Mapping[str, Any], wanted: str) -> bool:
    if any(similar(attribute, wanted) for attribute in purchased["Attributes"]):
        return True
    if wanted in purchased["Title"].lower() or wanted in " ".join(purchased["BulletPoints"]).lower():
        return True
    return wanted in purchased["Description"].lower()


def option_matches(purchased: Iterable[str], wanted: Iterable[Any]) -> int:
    """Counts the wanted options (values, or (name, value) pairs) to which some chosen value is similar, after
    normalising colours."""
    chosen = [normalize_color(value) for value in purchased]
    return sum(any(similar(value, goal) for value in chosen) for goal in map(normalize_color, wanted))


def wanted_options(goal: Mapping[str, Any]) -> list[Any]:
    """Returns the goal's options as the reward compares them: values of a human goal, pairs of a synthetic one."""
    options = goal["goal_options"]
    return list(options.items()) if isinstance(options, Mapping) else list(options)


def score(
    purchased: Mapping[str, Any],
    goal: Mapping[str, Any],
    price: float,
    options: Mapping[str, str],
    nouns: Nouns,
) -> tuple[float, dict[str, Any]]:
    """Returns the score of a purchase and its breakdown.

    Args:
        price: the sampled price of the product in dollars.
        options: chosen option values by name.
        nouns: title -> lower-cased nouns.
    """
    kind = type_match(purchased, goal, nouns)
    attributes, wanted = goal["attributes"], wanted_options(goal)
    n_attributes = attribute_matches(purchased, goal)
    n_options = option_matches(options.values(), wanted)
    affordable = bool(price <= goal["price_upper"])
    parts = len(attributes) + len(wanted) + 1
    breakdown = {
        **asdict(kind),
        "r_att": n_attributes / len(attributes) if attributes else None,
        "w_att": len(attributes) / parts,
        **({"r_option": n_options / len(wanted), "w_option": len(wanted) / parts} if wanted else {}),
        "r_price": affordable,
        "w_price": 1 / parts,
    }
    return kind.r_type * ((n_attributes + n_options + affordable) / parts), breakdown

"""Goals: what a shopper is asked to buy, drawn from two explicit seeds (specification sections 1.5 and 2).

Draw order: ``Random(construct_seed)`` gives the prices of all products and then the price bounds of all goals;
``Random(shuffle_seed)`` shuffles and serves everything after it (`GoalList.generator`). The process-wide generators are
never touched. A goal is kept as four numbers (row, variant, bound, weight) and spelled out on request, so that millions
of them fit into memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from random import Random
from string import ascii_lowercase
from typing import Any

import numpy as np

from environments.webshop.files import DataError
from environments.webshop.index import Catalogue

CONSTRUCT_SEED = 42
SHUFFLE_SEED = 233
PRICE_GRID = tuple(10.0 * step for step in range(1, 100))
NO_BOUND = 1_000_000

Goal = dict[str, Any]


def sampled_prices(catalogue: Catalogue, generator: Random) -> np.ndarray:
    """The price of every product as the reward uses it, float64 (N,): one draw for each with a price range."""
    prices = np.array(catalogue["price_low"])
    high = catalogue["price_high"]
    for row in np.flatnonzero(catalogue["price_count"] > 1).tolist():
        prices[row] = generator.uniform(float(prices[row]), float(high[row]))
    return prices


def price_bound(price: float, generator: Random) -> float | int:
    """The largest price that a goal allows: the larger of two of the four next grid values, if there are two."""
    grid = [value for value in PRICE_GRID if value > price][:4]
    return max(generator.sample(grid, 2)) if len(grid) >= 2 else NO_BOUND


def weighted_index(cumulative: Sequence[float], generator: Random) -> int:
    """An index by cumulative weights with a leading 0, one to the right of the usual answer as in the reference."""
    position = generator.uniform(0, cumulative[-1])
    return min(bisect_right(cumulative, position), len(cumulative) - 2)


def session_name(generator: Random) -> str:
    return "".join(generator.choices(ascii_lowercase, k=10))


class GoalList:
    """The goals of a catalogue under two seeds, in their final order.

    Args:
        catalogue: the products.
        human_goals: the instructions of people instead of synthetic ones.
        construct_seed: of prices and bounds.
        shuffle_seed: of the order and of later draws.
        filter_goals: keep the goals for which ``filter_goals(index, goal)`` is true.
        limit_goals: keep so many, drawn by weight; -1 for all.
        lenient: treat an unusable instruction as none instead of raising.

    Attributes:
        prices: float64 (N,), sampled product prices.
        generator: the state after shuffling and limiting; `draw` uses it.

    Raises:
        DataError: if the instruction data of a product cannot make goals.
        ValueError: if no goal is left.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        human_goals: bool = False,
        construct_seed: int = CONSTRUCT_SEED,
        shuffle_seed: int = SHUFFLE_SEED,
        filter_goals: Callable[[int, Goal], bool] | None = None,
        limit_goals: int = -1,
        lenient: bool = False,
    ):
        self.catalogue, self.human_goals, self._lenient = catalogue, human_goals, lenient
        generator = Random(construct_seed)
        self.prices = sampled_prices(catalogue, generator)
        self._rows, self._variants = array("i"), array("i")
        self._bounds, self._weights = array("d"), array("d")
        (self._add_human if human_goals else self._add_synthetic)(generator)
        self.generator = Random(shuffle_seed)
        order = list(range(len(self._rows)))
        self.generator.shuffle(order)
        self._order = array("i", order)
        if filter_goals is not None:
            kept = [number for i, number in enumerate(self._order) if filter_goals(i, self[i])]
            self._order = array("i", kept)
        if 0 <= limit_goals < len(self._order):
            self._limit(limit_goals)
        if not self._order:
            kind = "human" if human_goals else "synthetic"
            raise ValueError(f"the catalogue has no {kind} goals; check the instruction file and filter_goals")
        self._cumulative = self._cumulate()

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Goal:
        number = self._order[index]
        product = self.catalogue.product(self._rows[number])
        bound = self._bounds[number]
        suffix = f", and price lower than {bound:.2f} dollars" if bound != NO_BOUND else ""
        text, attributes, options = self._wish(product, self._variants[number])
        return {
            "asin": product["asin"],
            "category": product["category"],
            "query": product["query"],
            "name": product["name"],
            "product_category": product["product_category"],
            "instruction_text": text + suffix,
            "attributes": attributes,
            "price_upper": bound if suffix else NO_BOUND,
            "goal_options": options,
            "weight": 1 if self.human_goals else self._weights[number],
        }

    def row(self, index: int) -> int:
        """The catalogue row of a goal's product."""
        return self._rows[self._order[index]]

    def category(self, index: int) -> str:
        return self.catalogue.notes["category"][int(self.catalogue["category"][self.row(index)])]

    def draw(self, generator: Random | None = None) -> int:
        """The index of a goal, by weight."""
        return weighted_index(self._cumulative, generator or self.generator)

    def _wish(self, product: Mapping[str, Any], variant: int) -> tuple[str, list[str], Any]:
        if self.human_goals:
            record = product["human"][variant]
            return record["instruction"].strip("."), record["instruction_attributes"], record["instruction_options"]
        options: dict[str, str] = {}
        for name in sorted(product["options"], reverse=True):
            variant, place = divmod(variant, len(product["options"][name]))
            options[name] = product["options"][name][place]
        options = dict(reversed(options.items()))
        wished = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product["instruction_text"] + (f" with {wished}" if options else "")
        return text, product["instruction_attributes"], options

    def _add_human(self, generator: Random) -> None:
        for row in range(len(self.catalogue)):
            for variant, record in enumerate(self.catalogue.record(row)["human"]):
                if record["instruction_attributes"]:
                    self._add(row, (variant,), price_bound(self.prices[row], generator), 1.0)

    def _add_synthetic(self, generator: Random) -> None:
        mentions: Counter[str] = Counter()
        wished: list[tuple[list[str], int]] = []
        for row in range(len(self.catalogue)):
            product = self.catalogue.record(row)
            if not self._usable(product):
                continue
            bound = price_bound(self.prices[row], generator)
            count = prod(len(values) for values in product["options"].values())
            self._add(row, range(count), bound, 0.0)
            for attribute in product["instruction_attributes"]:
                mentions[attribute] += count
            wished.append((product["instruction_attributes"], count))
        self._weights = array("d")
        for attributes, count in wished:
            if count:
                weight = sum(1.0 / mentions[attribute] for attribute in attributes) / len(attributes)
                self._weights.extend([weight] * count)

    def _usable(self, product: Mapping[str, Any]) -> bool:
        if product["listed"] and product["instruction_text"] is None:
            return False
        if product["listed"] and product["instruction_attributes"]:
            return True
        if self._lenient:
            return False
        name = "instruction_attributes" if product["listed"] else "(whole record)"
        problem = "is empty" if product["listed"] else "is missing"
        file = self.catalogue.notes["files"][1]
        raise DataError(
            f"{file}: {product['asin']}, field {name!r}: {problem}; synthetic goals need it: "
            "complete the record, use human_goals=True, or load with lenient=True"
        )

    def _add(self, row: int, variants: Iterable[int], bound: float, weight: float) -> None:
        for variant in variants:
            self._rows.append(row)
            self._variants.append(variant)
            self._bounds.append(bound)
            self._weights.append(weight)

    def _cumulate(self) -> list[float]:
        if self.human_goals:
            return list(range(len(self._order) + 1))
        weights = np.frombuffer(self._weights, np.float64)[np.frombuffer(self._order, np.int32)]
        return [0, *np.cumsum(weights).tolist()]

    def _limit(self, count: int) -> None:
        cumulative, chosen = self._cumulate(), {}
        while len(chosen) < count:
            chosen.setdefault(weighted_index(cumulative, self.generator))
        self._order = array("i", [self._order[index] for index in chosen])

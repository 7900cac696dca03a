"""Goals: the purchases that shoppers are asked for, drawn from two explicit seeds (WebShop facts 1.5 and 2).

Draw order: ``Random(construct_seed)`` gives the prices of all products and then the price bounds of all goals;
``Random(shuffle_seed)`` shuffles and serves everything after it (`GoalList.generator`). The process-wide generators are
never touched. A goal is kept as four numbers (row, variant, bound, weight) and spelled out on request, so that millions
of them fit into memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

import numpy as np

from alignopsd_trl.environments.base import DataError
from alignopsd_trl.environments.webshop.engine import store
from alignopsd_trl.environments.webshop.engine.index import Catalogue

CONSTRUCT_SEED = 42
SHUFFLE_SEED = 233
PRICE_GRID = tuple(10.0 * step for step in range(1, 100))
NO_BOUND = 1_000_000

SHARED_FROM = 100_000  # products from which on goal lists are kept on disk and shared by processes
_STATE_VERSION = 3  # of Python's generator

Goal = dict[str, Any]


def sampled_prices(catalogue: Catalogue, generator: Random) -> np.ndarray:
    """Returns the price of every product for the reward, float64 (N,): one draw for each with a price range."""
    prices = np.array(catalogue["price_low"])
    high = catalogue["price_high"]
    for row in np.flatnonzero(catalogue["price_count"] > 1).tolist():
        prices[row] = generator.uniform(float(prices[row]), float(high[row]))
    return prices


def price_bound(price: float, generator: Random) -> float | int:
    """Returns the largest price that a goal allows: the larger of two of the four next grid values."""
    grid = [value for value in PRICE_GRID if value > price][:4]
    return max(generator.sample(grid, 2)) if len(grid) >= 2 else NO_BOUND


def weighted_index(cumulative: Sequence[float] | np.ndarray, generator: Random) -> int:
    """Draws an index by cumulative weights with a leading 0: as in the reference, one above the usual index."""
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
        limit_goals: int = -1,
        lenient: bool = False,
    ):
        self.catalogue, self.human_goals = catalogue, human_goals
        table = goal_table(catalogue, human_goals, construct_seed, shuffle_seed, lenient)
        self.prices: np.ndarray = table["prices"]
        self._rows, self._variants = table["goal_rows"], table["goal_variants"]
        self._bounds, self._weights = table["goal_bounds"], table["goal_weights"]
        self._order, self._cumulative = table["goal_order"], table["goal_cumulative"]
        self.generator = Random()
        self.generator.setstate((_STATE_VERSION, tuple(table["generator"].tolist()), None))
        if 0 <= limit_goals < len(self):
            self._order = self._order[self._limited(limit_goals)]
            self._cumulative = _cumulated(self._weights[self._order])
        if not len(self):
            kind = "human" if human_goals else "synthetic"
            raise ValueError(f"the catalogue has no {kind} goals; check the instruction file")

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Goal:
        number = self._order[index]
        product = self.catalogue.product(int(self._rows[number]))
        bound = float(self._bounds[number])
        suffix = f", and price lower than {bound:.2f} dollars" if bound != NO_BOUND else ""
        text, attributes, options = self._wish(product, int(self._variants[number]))
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
            "weight": 1 if self.human_goals else float(self._weights[number]),
        }

    def draw(self, generator: Random | None = None) -> int:
        """Draws the index of a goal by weight."""
        return weighted_index(self._cumulative, generator or self.generator)

    def _wish(self, product: Mapping[str, Any], variant: int) -> tuple[str, list[str], Any]:
        """Returns instruction without the price bound, attributes and options of one variant of a product's goal."""
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

    def _limited(self, count: int) -> list[int]:
        chosen: dict[int, None] = {}
        while len(chosen) < count:
            chosen.setdefault(self.draw())
        return list(chosen)


def goal_table(
    catalogue: Catalogue, human_goals: bool, construct_seed: int, shuffle_seed: int, lenient: bool
) -> Mapping[str, np.ndarray]:
    """Returns prices, goals, their order and the generator's state as arrays: on disk and shared for a large catalogue,
    in memory otherwise (a quarter of a second for 10,000 products)."""
    if len(catalogue) < SHARED_FROM:
        return _table(catalogue, human_goals, construct_seed, shuffle_seed, lenient)
    kind = "human" if human_goals else "synthetic"
    name = f"goals-{kind}-{construct_seed}-{shuffle_seed}{'-lenient' if lenient else ''}"

    def build(writer: store.Writer) -> None:
        for key, values in _table(catalogue, human_goals, construct_seed, shuffle_seed, lenient).items():
            writer.add(key, values)

    folder = catalogue.folder.with_name(f"{catalogue.folder.name}-goals")
    return store.open_or_build(folder, f"{name}-{store.digest(Path(__file__))[:16]}", build)


def _table(
    catalogue: Catalogue, human_goals: bool, construct_seed: int, shuffle_seed: int, lenient: bool
) -> dict[str, np.ndarray]:
    generator = Random(construct_seed)
    prices = sampled_prices(catalogue, generator)
    drawn = _Drawn()
    if human_goals:
        drawn.add_human(catalogue, prices, generator)
    else:
        drawn.add_synthetic(catalogue, prices, generator, lenient)
    shuffler = Random(shuffle_seed)
    order = list(range(len(drawn.rows)))
    shuffler.shuffle(order)
    weights, order_ = np.array(drawn.weights, np.float64), np.array(order, np.int32)
    return {
        "prices": prices,
        "goal_rows": np.array(drawn.rows, np.int32),
        "goal_variants": np.array(drawn.variants, np.int32),
        "goal_bounds": np.array(drawn.bounds, np.float64),
        "goal_weights": weights,
        "goal_order": order_,
        "goal_cumulative": _cumulated(weights[order_]),
        "generator": np.array(shuffler.getstate()[1], np.int64),
    }


def _cumulated(weights: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(weights)])


class _Drawn:
    """Goals in the order of construction, as columns."""

    def __init__(self) -> None:
        self.rows, self.variants = array("i"), array("i")
        self.bounds, self.weights = array("d"), array("d")

    def add_human(self, catalogue: Catalogue, prices: np.ndarray, generator: Random) -> None:
        for row in range(len(catalogue)):
            for variant, record in enumerate(catalogue.record(row)["human"]):
                if record["instruction_attributes"]:
                    self._add(row, variant, variant + 1, price_bound(prices[row], generator))
        self.weights = array("d", [1.0]) * len(self.rows)

    def add_synthetic(self, catalogue: Catalogue, prices: np.ndarray, generator: Random, lenient: bool) -> None:
        mentions: Counter[str] = Counter()
        wished: list[tuple[list[str], int]] = []
        for row in range(len(catalogue)):
            product = catalogue.record(row)
            if not _usable(product, catalogue.notes["files"][1], lenient):
                continue
            bound = price_bound(prices[row], generator)
            count = prod(map(len, product["options"].values()))
            self._add(row, 0, count, bound)
            for attribute in product["instruction_attributes"]:
                mentions[attribute] += count
            wished.append((product["instruction_attributes"], count))
        for attributes, count in wished:
            if count:
                weight = sum(1.0 / mentions[attribute] for attribute in attributes) / len(attributes)
                self.weights.extend([weight] * count)

    def _add(self, row: int, first: int, last: int, bound: float) -> None:
        self.rows.extend([row] * (last - first))
        self.variants.extend(range(first, last))
        self.bounds.extend([bound] * (last - first))


def _usable(product: Mapping[str, Any], file: str, lenient: bool) -> bool:
    """Whether a product has synthetic goals."""
    if product["listed"] and product["instruction_text"] is None:
        return False
    if product["listed"] and product["instruction_attributes"]:
        return True
    if lenient:
        return False
    name, problem = ("instruction_attributes", "is empty") if product["listed"] else ("(whole record)", "is missing")
    raise DataError(
        f"{file}: {product['asin']}, field {name!r}: {problem}; synthetic goals need it: complete the record, use "
        "human_goals=True, or load with lenient=True"
    )

"""A shop that many shoppers share: the catalogue, a goal list, the rewards and ready-made pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from alignopsd_trl.environments.webshop.engine import pages, reward
from alignopsd_trl.environments.webshop.engine.goals import Goal, GoalList
from alignopsd_trl.environments.webshop.engine.index import KEPT_PRODUCTS, Catalogue
from alignopsd_trl.environments.webshop.engine.nouns import Nouns, extractor
from alignopsd_trl.environments.webshop.engine.search import RETURN_N

PAGE_SIZE = 10
KEPT_PAGES = 1024  # pages of results, and sub-pages, that a process remembers


class Sheet(NamedTuple):
    """A page, or the part of it that is the same for all shoppers."""

    pieces: tuple[pages.Piece, ...]
    text: str
    targets: Mapping[str, pages.Piece]

    @classmethod
    def of(cls, pieces: list[pages.Piece]) -> Sheet:
        return cls(tuple(pieces), pages.plain(pieces), pages.clickables(pieces))


class Shop:
    """The data that sessions read and never change.

    Args:
        catalogue: the products.
        goals: the goal list, with the sampled prices.
        nouns: see `alignopsd_trl.environments.webshop.engine.nouns.extractor`.
        show_attributes: offer the page of a product's attributes.
        specials: understand ``<r>``, ``<c> name`` and ``<q> phrase`` as first keywords of a search.
        results_per_page: products on a page of results.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        goals: GoalList,
        *,
        nouns: str | Nouns = "standin",
        show_attributes: bool = False,
        specials: bool = True,
        results_per_page: int = PAGE_SIZE,
    ):
        self.catalogue, self.goals = catalogue, goals
        self.show_attributes, self.specials, self.results_per_page = show_attributes, specials, results_per_page
        self._nouns = extractor(nouns)[1]
        self.goal = lru_cache(maxsize=KEPT_PRODUCTS)(goals.__getitem__)
        self.item_sheet = lru_cache(maxsize=KEPT_PRODUCTS)(self._item_sheet)
        self.sub_sheet = lru_cache(maxsize=KEPT_PAGES)(self._sub_sheet)
        self.results_sheet = lru_cache(maxsize=KEPT_PAGES)(self._results_sheet)

    def search(self, keywords: list[str], generator: Random) -> tuple[int, ...]:
        """Returns the rows that a search finds; only ``<r>`` draws from the generator."""
        if self.specials and keywords[0] in ("<r>", "<a>", "<c>", "<q>"):
            return self._special(keywords[0], keywords[1:], generator)
        return self.catalogue.search(" ".join(keywords))

    def _special(self, kind: str, words: list[str], generator: Random) -> tuple[int, ...]:
        if kind == "<r>" and len(self.catalogue) >= RETURN_N:
            return tuple(generator.sample(range(len(self.catalogue)), RETURN_N))
        if kind == "<c>" and words:
            return self.catalogue.having("category", words[0].strip())
        if kind == "<q>":
            return self.catalogue.having("query", " ".join(words).strip())
        return ()

    def buy(self, row: int, goal: Goal, options: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        """Returns the score of buying a product for a goal, with its breakdown."""
        price = float(self.goals.prices[row])
        return reward.score(self.catalogue.product(row), goal, price, options, self._nouns)

    def _results_sheet(self, rows: tuple[int, ...], page: int, total: int) -> Sheet:
        return Sheet.of(pages.results_page(page, total, map(self.catalogue.card, rows)))

    def _item_sheet(self, row: int) -> Sheet:
        return Sheet.of(pages.item_page(self.catalogue.product(row), self.show_attributes))

    def _sub_sheet(self, row: int, kind: str) -> Sheet:
        return Sheet.of(pages.sub_page(self.catalogue.product(row), kind))

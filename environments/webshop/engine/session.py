"""The session of one shopper: its page, its possible actions and their effects (WebShop facts 3 to 6)."""

from __future__ import annotations

import json
from enum import Enum
from random import Random
from typing import Any, NamedTuple

from alignopsd_trl.environments.webshop.engine import pages
from alignopsd_trl.environments.webshop.engine.goals import Goal
from alignopsd_trl.environments.webshop.engine.pages import Piece, Role
from alignopsd_trl.environments.webshop.engine.shop import Sheet, Shop

_SUB_PAGES = frozenset({"description", "features", "reviews", "attributes"})


class Kind(Enum):
    """The kind of page that a shopper looks at."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    SUB_PAGE = "sub_page"
    DONE = "done"


class Effect(NamedTuple):
    """The result of an action. ``reward`` is the int 0 if nothing was executed; ``breakdown`` is set by a purchase."""

    reward: float
    done: bool
    breakdown: dict[str, Any] | None


NOTHING, MOVED = Effect(0, False, None), Effect(0.0, False, None)


def parse(action: str) -> tuple[str, str] | None:
    """Parses ``name[argument]`` at the start of an action into the name and the lower-cased argument. Neither is empty
    nor contains a newline; the argument ends at the last ``]`` and begins after the last ``[`` that leaves it a
    character."""
    line = action.split("\n", 1)[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else None


class ShopSession:
    """The state of one episode.

    Args:
        shop: shared and read only.
        goal: what to buy.
        generator: of the search ``<r>`` alone.
        name: part of the page address (mode ``text_rich``).
    """

    __slots__ = (
        "shop", "goal", "generator", "name", "kind", "keywords", "page", "row", "visited", "options", "_sheet",
        "_head",
    )  # fmt: skip

    def __init__(self, shop: Shop, goal: Goal, generator: Random, name: str = ""):
        self.shop, self.goal, self.generator, self.name = shop, goal, generator, name
        head = pages.instruction_pieces(goal["instruction_text"])
        self._head = (head, pages.plain(head))
        self.enter()

    def enter(self) -> None:
        """Shows the search page and forgets everything but the goal."""
        self.kind, self.keywords, self.page, self.row = Kind.SEARCH, None, None, None
        self.visited: set[str] = set()
        self.options: dict[str, str] = {}
        self._sheet = Sheet.of(pages.search_page(self.goal["instruction_text"]))

    @property
    def asin(self) -> str | None:
        return None if self.row is None else self._asin(self.row)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Returns all visible pieces of the page, in order."""
        return self._sheet.pieces if self._stands_alone else self._head[0] + self._sheet.pieces

    @property
    def text(self) -> str:
        """Returns the observation in mode ``text``."""
        if self._stands_alone or not self._sheet.text:
            return self._sheet.text
        return f"{self._head[1]}{pages.SEPARATOR}{self._sheet.text}"

    @property
    def rich(self) -> str:
        """Returns the observation in mode ``text_rich``."""
        return pages.rich(self.pieces, self.visited, self._address())

    @property
    def has_search_bar(self) -> bool:
        return self.kind is Kind.SEARCH

    @property
    def clickables(self) -> list[str]:
        return list(self._sheet.targets)

    def admits(self, action: str) -> bool:
        """Whether an action is on offer: a search where there is a search bar, or a click on the page."""
        parsed = parse(action)
        if parsed is None:
            return False
        name, argument = parsed
        return name == "search" and self.has_search_bar or name == "click" and argument in self._sheet.targets

    def step(self, action: str) -> Effect:
        """Executes any string; an impossible action changes nothing."""
        parsed = parse(action)
        if parsed is None:
            return NOTHING
        name, argument = parsed
        if name == "search":
            return self._search(argument)
        if name != "click" or argument == "search":
            return NOTHING
        target = self._sheet.targets.get(argument)
        return NOTHING if target is None else self._click(argument, target)

    @property
    def _stands_alone(self) -> bool:
        return self.kind is Kind.SEARCH or self.kind is Kind.DONE

    def _search(self, argument: str) -> Effect:
        self.keywords = argument.split(" ")
        return self._results(1)

    def _results(self, page: int) -> Effect:
        self.kind, self.page, self.row, self.options = Kind.RESULTS, page, None, {}
        rows = self.shop.search(self.keywords or [], self.generator)
        size = self.shop.results_per_page
        self._sheet = self.shop.results_sheet(rows[(page - 1) * size : page * size], page, len(rows))
        return MOVED

    def _click(self, name: str, target: Piece) -> Effect:
        if name == "buy now":
            return self._buy()
        if name == "back to search":
            self.enter()
            return MOVED
        if self.kind is Kind.RESULTS and name in ("next >", "< prev"):
            return self._results((self.page or 1) + (1 if name == "next >" else -1))
        if name == "< prev":
            return self._item() if self.kind is Kind.SUB_PAGE else self._results(self.page or 1)
        if name in _SUB_PAGES and self.row is not None:
            self.kind, self._sheet = Kind.SUB_PAGE, self.shop.sub_sheet(self.row, name)
            return MOVED
        return self._choose(name, target)

    def _choose(self, name: str, target: Piece) -> Effect:
        if target.role is Role.PRODUCT:
            self.row = self.shop.catalogue.row(name.upper())
            self.visited.add(name.upper())
        elif target.role is Role.OPTION:
            self.options[target.name] = name
        return self._item()

    def _opened(self) -> int:
        """Returns the row of the product whose page is open."""
        assert self.row is not None, "no page before a product's offers this click"
        return self.row

    def _asin(self, row: int) -> str:
        return self.shop.catalogue.product(row)["asin"]

    def _item(self) -> Effect:
        self.kind, self._sheet = Kind.ITEM, self.shop.item_sheet(self._opened())
        return MOVED

    def _buy(self) -> Effect:
        row = self._opened()
        total, breakdown = self.shop.buy(row, self.goal, self.options)
        self.kind = Kind.DONE
        self._sheet = Sheet.of(pages.done_page(self._asin(row), self.options, total))
        return Effect(total, True, breakdown)

    def _address(self) -> str:
        parts = (self.name, self.asin, "+".join(self.keywords or ()), self.page, json.dumps(self.options))
        return "/".join(map(str, parts))

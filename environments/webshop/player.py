"""Scripted shoppers of mixed quality for the embedded WebShop.

A shopper decides from what the prompt shows (`alignopsd_trl.environments.base.View`) and nothing else. At every
decision it is
careful with the probability `care`; otherwise it follows a careless habit: a query of one or two words, the first hit
unread, a feature unchecked, an option skipped. Each answer names its decision in a few words of thinking.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from alignopsd_trl.environments.base import TextEnvironment, View

HABITS = (0.3, 0.5, 0.7)  # care of an episode without a skill
CAREFUL = 0.95  # care of every answer under a skill

REQUEST = re.compile(
    r"^(?:find me|i need|looking for) (?P<item>.*?)(?: that is (?P<feature>.*?))?(?: with (?P<options>.*?))?"
    r"(?:, and price lower than (?P<ceiling>[\d.]+) dollars)?$"
)
ASIN = re.compile(r"[0-9]{10}")


@dataclass(frozen=True)
class ShopRequest:
    """A parsed request. `words` keep the order of the request; `ceiling` is in dollars."""

    noun: str
    words: tuple[str, ...]
    feature: str
    options: Mapping[str, str]
    ceiling: float

    @classmethod
    def read(cls, text: str) -> ShopRequest:
        """Parses a request. Raises ValueError on a text that the catalogue's requests cannot have."""
        match = REQUEST.match(text)
        if match is None:
            raise ValueError(f"not a request of the embedded catalogue: {text!r}")
        pairs = [pair.split(": ") for pair in (match["options"] or "").split(", and ") if pair]
        words = match["item"].replace(",", "").split()
        noun = words[0] if "," in match["item"] else words[-1]
        return cls(noun, tuple(words), match["feature"] or "", dict(pairs), float(match["ceiling"] or "inf"))


@dataclass(frozen=True)
class Row:
    """One hit of a results page; `price` is the lower one of a range, in dollars."""

    asin: str
    title: str
    price: float

    def fits(self, request: ShopRequest) -> bool:
        return set(request.words) <= set(re.findall(r"\w+", self.title.lower())) and self.price <= request.ceiling


@dataclass(frozen=True)
class ShopPage:
    """A parsed observation. `kind` is ``search``, ``results``, ``item`` or ``text``."""

    kind: str
    pieces: tuple[str, ...]
    rows: tuple[Row, ...] = ()

    @classmethod
    def read(cls, observation: str) -> ShopPage:
        pieces = tuple(piece.removeprefix("'").removesuffix("'") for piece in observation.split(" [SEP] "))
        if pieces == ("Search",):
            return cls("search", pieces)
        if pieces[1].startswith("Page "):
            starts = [place for place, piece in enumerate(pieces) if ASIN.fullmatch(piece)]
            rows = tuple(Row(pieces[s], pieces[s + 1], low_price(pieces[s + 2])) for s in starts)
            return cls("results", pieces, rows)
        return cls("item" if "Buy Now" in pieces else "text", pieces)

    @property
    def product(self) -> Row:
        """Returns the product of an item page, without its asin, which the page does not show."""
        place = next(number for number, piece in enumerate(self.pieces) if piece.startswith("Price: "))
        return Row("", self.pieces[place - 1], low_price(self.pieces[place]))


@dataclass(frozen=True)
class ShopAnswer:
    """A shopper's thought and action in one turn."""

    thought: str
    action: str

    @property
    def text(self) -> str:
        return f"<think>{self.thought}</think><action>{self.action}</action>"


class ScriptedShopper:
    """Answers one view at a time; keeps nothing between turns.

    Args:
        care (`float`): probability of the careful choice at each decision, in [0, 1].
        draw (`random.Random`): decides between care and carelessness.
    """

    def __init__(self, care: float, draw: random.Random):
        self.care, self.draw = care, draw

    def answer(self, view: View) -> ShopAnswer:
        request, page = ShopRequest.read(view.task_text), ShopPage.read(view.observation)
        actions = [record.action for record in view.history]
        return getattr(self, f"_on_{page.kind}")(request, page, actions)

    def _careful(self) -> bool:
        return self.draw.random() < self.care

    def _on_search(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> ShopAnswer:
        kind = request.noun
        if self._careful():
            return ShopAnswer(f"looking for {kind} with all its traits", f"search[{' '.join(request.words)}]")
        trait = self.draw.choice([word for word in request.words if word != kind])
        query = kind if self.draw.random() < 0.5 else f"{trait} {kind}"
        return ShopAnswer(f"looking for some {kind}", f"search[{query}]")

    def _on_results(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> ShopAnswer:
        if page.rows and not self._careful():
            return ShopAnswer("first hit looks fine", click(page.rows[0].asin))
        fitting = [row for row in page.rows if row.fits(request) and click(row.asin) not in actions]
        if fitting:
            return ShopAnswer(f"comparing titles and prices, this {request.noun} fits", click(fitting[0].asin))
        full = f"search[{' '.join(request.words)}]"
        if full not in actions:
            return ShopAnswer("no title fits, searching all traits", full)
        return ShopAnswer("no title fits, next page", click("next >"))

    def _on_item(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> ShopAnswer:
        done = since_opening(actions)
        if not done and not page.product.fits(request) and self._careful():
            return ShopAnswer("wrong product, back to results", click("< prev"))
        if request.feature and click("features") not in done and not clicked(request, done) and self._careful():
            return ShopAnswer(f"checking features for {request.feature}", click("features"))
        for name, value in request.options.items():
            if value in page.pieces and click(value) not in done and self._careful():
                return ShopAnswer(f"choosing {name} {value}", click(value))
        return ShopAnswer("ready to buy", click("buy now"))

    def _on_text(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> ShopAnswer:
        if not request.feature or request.feature in page.pieces or not self._careful():
            return ShopAnswer(f"features read, back to {request.noun}", click("< prev"))
        return ShopAnswer(f"{request.feature} is missing, back to search", click("back to search"))


def respond(view: View, environment: TextEnvironment, skill: str, draw: random.Random) -> str:
    """Returns a whole response, for `alignopsd demonstrate`: careful under a skill, of mixed care without one."""
    return ScriptedShopper(CAREFUL if skill else draw.choice(HABITS), draw).answer(view).text


def low_price(tag: str) -> float:
    """Returns the first price of a tag such as ``$9.5``, ``$9.5 to $12.0`` or ``Price: $9.5``, in dollars."""
    return float(re.findall(r"\$([\d.]+)", tag)[0])


def click(target: str) -> str:
    return f"click[{target.lower()}]"


def since_opening(actions: list[str]) -> list[str]:
    """Returns the actions after the latest click on a product; all of them if that lies before the shown history."""
    opened = [place for place, action in enumerate(actions) if ASIN.fullmatch(action[6:-1])]
    return actions[opened[-1] + 1 :] if opened else actions


def clicked(request: ShopRequest, actions: list[str]) -> bool:
    return any(click(value) in actions for value in request.options.values())

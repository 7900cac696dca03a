"""Shoppers on trips whose thinking states their situation, and who read their skill.

A thought says in varied words what was asked, what the page shows, what is chosen and what is missing, all of it
true, and ends in what the shopper makes of it: ``this is linen slim fit coat at 18.0 ; chosen large ; missing red ;
limit 40.00 ; so buy``. A shopper has four habits, one a kind of trap (`alignopsd_trl.environments.webshop.trips`),
and gives in to each about every second time. A skill of a kind keeps it from that habit and from no other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from alignopsd_trl.environments.base import Record, Suite, View
from alignopsd_trl.environments.webshop.player import ASIN, Row, ShopAnswer, ShopPage, ShopRequest, click
from alignopsd_trl.environments.webshop.trips import KINDS
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies.demonstrations import Demonstration
from assets.tiny_policies.heeding import heeding

HABITS = {
    "options": {"leave": 0.45},
    "price": {"dear": 0.55, "unnoticed": 0.8},
    "features": {"unread": 0.4},
    "search": {"short": 0.7, "first": 0.8, "unnoticed": 0.8},
}
"""How often a shopper without the fitting skill gives in, at each decision that a habit has a say in."""
HEEDED = 0.03  # of these, what is left under the fitting skill
SLIPS = 0.003  # of all other decisions, a page left for the search page
WORDINGS = {
    "asked": ("asked", "wanted", "the request is"),
    "open": ("this is", "open is", "the page shows"),
    "limit": ("limit", "at most", "may cost"),
    "chosen": ("chosen", "set so far", "picked"),
    "missing": ("missing", "still open", "not yet set"),
    "fits": ("titles that fit cost", "fitting titles at", "it may be one at"),
    "none": ("no title fits", "none of these titles fits", "the titles do not fit"),
    "proof": ("features say", "listed here is", "the features name"),
}
DECISIONS = (
    "search all its words",
    "take the one within the limit",
    "take the first that fits",
    "take the first hit",
    "look further",
    "back , wrong title",
    "back , over the limit",
    "read the features",
    "back to buy it",
    "search another",
    "search again",
)
_SAID = [words for said in WORDINGS.values() for words in said]
PHRASES = (" ; so ", " ; ", " , ", *DECISIONS, *(f"{words} " for words in _SAID if " " in words))
"""What is one token, so that a thought takes some twenty."""


@dataclass(frozen=True)
class Situation:
    """What a shopper knows on a turn: the request, the page, the clicks since the product was opened, the products that
    were opened for this request, and the searches."""

    request: ShopRequest
    page: ShopPage
    done: tuple[str, ...]
    opened: tuple[str, ...]
    searches: tuple[str, ...]

    @classmethod
    def read(cls, view: View) -> Situation:
        _, text, page = view.observation.split(" [SEP] ", 2)
        actions = _since_purchase(view.history)
        opened = [place for place, action in enumerate(actions) if ASIN.fullmatch(action[6:-1])]
        done = actions[opened[-1] + 1 :] if opened else actions
        return cls(
            ShopRequest.read(text.strip("'")),
            ShopPage.read(page),
            tuple(done),
            tuple(actions[place] for place in opened),
            tuple(action for action in actions if action.startswith("search[")),
        )

    @property
    def fitting(self) -> list[Row]:
        """The unopened hits with the right title, whatever they cost."""
        words = set(self.request.words)
        rows = [row for row in self.page.rows if click(row.asin) not in self.opened]
        return [row for row in rows if words <= set(re.findall(r"\w+", row.title.lower()))]

    @property
    def right_title(self) -> bool:
        return set(self.request.words) <= set(re.findall(r"\w+", self.page.product.title.lower()))

    @property
    def too_dear(self) -> bool:
        return self.page.product.price > self.request.ceiling

    @property
    def chosen(self) -> list[str]:
        return [value for value in self.request.options.values() if click(value) in self.done]

    @property
    def missing(self) -> list[str]:
        return [value for value in self.request.options.values() if click(value) not in self.done]

    @property
    def proven(self) -> bool:
        return click("features") in self.done


class SituatedShopper:
    """Answers one view at a time; keeps nothing between turns.

    Args:
        heeds (`Sequence[str]`): the kinds of trap that its skill warns of.
        draw (`random.Random`): of habits, slips and words.
    """

    def __init__(self, heeds: Sequence[str], draw: random.Random):
        self.heeds, self.draw = frozenset(heeds), draw

    def answer(self, view: View) -> str:
        now = Situation.read(view)
        facts = getattr(self, f"_facts_on_{now.page.kind}")(now)
        decision, action = getattr(self, f"_on_{now.page.kind}")(now)
        if now.page.kind != "search" and self.draw.random() < SLIPS:
            decision, action = "search again", click("back to search")
        return ShopAnswer(f"{' ; '.join(facts)} ; so {decision}", action).text

    def _gives_in(self, kind: str, habit: str) -> bool:
        return self.draw.random() < HABITS[kind][habit] * (HEEDED if kind in self.heeds else 1.0)

    def _on_search(self, now: Situation) -> tuple[str, str]:
        words = now.request.words
        if _lists_words(now) and not now.searches and self._gives_in("search", "short"):
            return f"search {words[0]}", f"search[{words[0]}]"
        return "search all its words", f"search[{' '.join(words)}]"

    def _on_results(self, now: Situation) -> tuple[str, str]:
        rows, fitting, full = now.page.rows, now.fitting, f"search[{' '.join(now.request.words)}]"
        short = full not in now.searches
        if rows and short and not now.opened and _lists_words(now) and self._gives_in("search", "first"):
            return "take the first hit", click(rows[0].asin)
        if not fitting:
            return ("search all its words", full) if short else ("look further", click("next >"))
        within = [row for row in fitting if row.price <= now.request.ceiling]
        if fitting[0] not in within and (not within or self._gives_in("price", "dear")):
            return "take the first that fits", click(fitting[0].asin)
        return "take it" if len(fitting) == 1 else "take the one within the limit", click(within[0].asin)

    def _on_item(self, now: Situation) -> tuple[str, str]:
        if not now.done:
            if not now.right_title and not (_lists_words(now) and self._gives_in("search", "unnoticed")):
                return "back , wrong title", click("< prev")
            if now.too_dear and now.right_title and not self._gives_in("price", "unnoticed"):
                return "back , over the limit", click("< prev")
        if now.request.feature and not now.proven and (not now.chosen or "features" in self.heeds):
            if not self._gives_in("features", "unread"):
                return "read the features", click("features")
        offered = [value for value in now.missing if value in now.page.pieces]
        if offered and not (now.chosen and self._gives_in("options", "leave")):
            return f"choose {offered[0]}", click(offered[0])
        return "buy", click("buy now")

    def _on_text(self, now: Situation) -> tuple[str, str]:
        if not now.request.feature or now.request.feature in now.page.pieces:
            return "back to buy it", click("< prev")
        return "search another", click("back to search")

    def _word(self, slot: str) -> str:
        return self.draw.choice(WORDINGS[slot])

    def _limit(self, now: Situation) -> list[str]:
        ceiling = now.request.ceiling
        return [] if ceiling == float("inf") else [f"{self._word('limit')} {ceiling:.2f}"]

    def _facts_on_search(self, now: Situation) -> list[str]:
        asked = [" ".join(now.request.words), *filter(None, [now.request.feature]), *now.request.options.values()]
        return [f"{self._word('asked')} {' , '.join(asked)}", *self._limit(now)]

    def _facts_on_results(self, now: Situation) -> list[str]:
        prices = [f"{row.price}" for row in now.fitting]
        found = f"{self._word('fits')} {' , '.join(prices)}" if prices else self._word("none")
        return [f"{self._word('asked')} {' '.join(now.request.words)}", found, *self._limit(now)]

    def _facts_on_item(self, now: Situation) -> list[str]:
        product, feature = now.page.product, now.request.feature
        title = re.sub(r"^\w+ ", "", product.title).replace(",", "").lower()
        others = [
            f"{self._word('chosen')} {' , '.join(now.chosen) or 'nothing'}",
            f"{self._word('missing')} {' , '.join(now.missing) or 'nothing'}",
            *self._limit(now),
            *([f"{feature} {'proven' if now.proven else 'unproven'}"] if feature else []),
        ]
        turn = self.draw.randrange(2)
        return [f"{self._word('open')} {title} at {product.price}", *others[turn:], *others[:turn]]

    def _facts_on_text(self, now: Situation) -> list[str]:
        said = now.page.pieces[3] if len(now.page.pieces) > 3 else now.page.pieces[-1]
        return [f"{self._word('asked')} {now.request.feature or 'no feature'}", f"{self._word('proof')} {said}"]


def _lists_words(now: Situation) -> bool:
    return now.request.noun == now.request.words[0]


def _since_purchase(history: Sequence[Record]) -> list[str]:
    actions = [record.action for record in history]
    bought = [place for place, action in enumerate(actions) if action == "click[buy now]"]
    return actions[bought[-1] + 1 :] if bought else actions


def demonstrations(suite: Suite, bank: SkillBank, passes: int, seed: int) -> Iterator[Demonstration]:
    """Every turn of ``passes`` trips on each training task, see `heeding`."""
    draw, rows, environment = random.Random(seed), list(suite.tasks("train")), suite.factory()
    trips = ((environment, row) for _ in range(passes) for row in draw.sample(rows, len(rows)))
    return heeding(trips, SituatedShopper, KINDS, bank, draw)

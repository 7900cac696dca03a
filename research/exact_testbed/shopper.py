"""The shopper of the arena: every decision is careful with a known probability."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from typing import Any

from alignopsd_trl.environments.base import View
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.webshop.player import ShopPage, ShopRequest, click, clicked, since_opening
from research.exact_testbed.games import Choice, Game, Trip

DECISIONS = ("search", "choose", "return", "feature", "option")
Part = tuple[str, str, str]  # decision, thinking, action


class ExactShopper:
    """A shopper whose every decision is careful with a known probability, in a known order.

    Args:
        care: of each of `DECISIONS` without the skill; one number for all, by decision, or by ``"weakness/decision"``
            where requests of another `weakness` have other probabilities.
        skilled: of all of them with it.
        situated: whether thinking states its situation.
        naming: whether the skill names one decision alone, the `weakness` of the request, and leaves the others as they
            are without it.
    """

    def __init__(
        self,
        care: Mapping[str, float] | float = 0.5,
        skilled: float = 0.95,
        situated: bool = False,
        naming: bool = False,
    ):
        self.care = dict.fromkeys(DECISIONS, care) if isinstance(care, float) else {**care}
        self.skilled, self.situated, self.naming = skilled, situated, naming

    def __call__(self, view: View) -> list[Choice]:
        request, page = ShopRequest.read(view.task_text), ShopPage.read(view.observation)
        actions = [record.action for record in view.history]
        careful, careless = getattr(self, f"_on_{page.kind}")(request, page, actions)
        suffix = _situation(request, page, actions) if self.situated else ""
        choices, slope, left, left_skilled = [], dict.fromkeys(self.care, 0.0), 1.0, 1.0
        for decision, thinking, action in careful:
            name = self._name(request, decision)
            care = self.care[name]
            skilled = care if self.naming and decision != weakness(request) else self.skilled
            own = slope | {name: slope[name] + 1 - care}
            choices.append(Choice(thinking + suffix, action, left * care, left_skilled * skilled, own))
            slope[name] -= care
            left, left_skilled = left * (1 - care), left_skilled * (1 - skilled)
        return [*choices, Choice(careless[0] + suffix, careless[1], left, left_skilled, slope)]

    def _name(self, request: ShopRequest, decision: str) -> str:
        by_kind = f"{weakness(request)}/{decision}"
        return by_kind if by_kind in self.care else decision

    def _on_search(
        self, request: ShopRequest, page: ShopPage, actions: list[str]
    ) -> tuple[list[Part], tuple[str, str]]:
        full = f"search[{' '.join(request.words)}]"
        noun = request.noun
        return [("search", f"looking for {noun} with all its traits", full)], (
            f"looking for some {noun}",
            f"search[{noun}]",
        )

    def _on_results(
        self, request: ShopRequest, page: ShopPage, actions: list[str]
    ) -> tuple[list[Part], tuple[str, str]]:
        fitting = [row for row in page.rows if row.fits(request) and click(row.asin) not in actions]
        full = f"search[{' '.join(request.words)}]"
        if fitting:
            best = (f"comparing titles and prices, this {request.noun} fits", click(fitting[0].asin))
        elif full not in actions:
            best = ("no title fits, searching all traits", full)
        else:
            best = ("no title fits, next page", click("next >"))
        if not page.rows:
            return [], best
        return [("choose", *best)], ("first hit looks fine", click(page.rows[0].asin))

    def _on_item(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        done, parts = since_opening(actions), []
        if not done and not page.product.fits(request):
            parts.append(("return", "wrong product, back to results", click("< prev")))
        if request.feature and click("features") not in done and not clicked(request, done):
            parts.append(("feature", f"checking features for {request.feature}", click("features")))
        for name, value in request.options.items():
            if value in page.pieces and click(value) not in done:
                parts.append(("option", f"choosing {name} {value}", click(value)))
        return parts, ("ready to buy", click("buy now"))

    def _on_text(self, request: ShopRequest, page: ShopPage, actions: list[str]) -> tuple[list[Part], tuple[str, str]]:
        back = (f"features read, back to {request.noun}", click("< prev"))
        if request.feature in page.pieces:
            return [], back
        return [("feature", f"{request.feature} is missing, back to search", click("back to search"))], back


def _situation(request: ShopRequest, page: ShopPage, actions: list[str]) -> str:
    done = since_opening(actions)
    title = page.product.title if page.kind == "item" else page.kind
    chosen = [value for value in request.options.values() if click(value) in done]
    missing = [value for value in request.options.values() if click(value) not in done]
    fits = "fits" if page.kind == "item" and page.product.fits(request) else "unfit" if page.kind == "item" else ""
    checked = "read" if click("features") in done else "unread"
    return (
        f" ; {' '.join(request.words)} wanted ; on {title} {fits} ; features {checked} ; chosen {' '.join(chosen)} ; "
        f"missing {' '.join(missing)}"
    )


def weakness(request: ShopRequest) -> str:
    """The decision that requests of this kind go wrong at: one that they ask for, the same for equal requests."""
    asked = ["search", "choose", *(["feature"] if request.feature else []), *(["option"] if request.options else [])]
    return asked[sum(map(ord, request.noun)) % len(asked)]


def by_weakness(strong: float, weak: float) -> dict[str, float]:
    """Care of each decision by the requests' weakness, for `ExactShopper`."""
    return {f"{kind}/{one}": weak if one == kind else strong for kind in DECISIONS for one in DECISIONS}


def shop_state(environment: Any) -> Hashable:
    """What of a WebShop session decides what happens next."""
    session = environment._session
    keywords = tuple(session.keywords or ())
    return session.kind, keywords, session.page, session.row, tuple(sorted(session.options.items()))


def make_games(tasks: int, shopper: ExactShopper, seed: int = 0, max_turns: int = 8) -> list[Game]:
    """Expanded training tasks of the embedded catalogue."""
    suite = load("webshop_tiny", max_turns=max_turns)
    rows, environment = suite.tasks("train"), suite.factory()
    chosen = random.Random(seed).sample(range(len(rows)), tasks)
    return [Game(environment, rows[number], shopper, shop_state) for number in chosen]


def make_trips(games: list[Game], trips: int, requests: int, seed: int = 0) -> list[Game]:
    """Trips of so many games each, drawn from the given ones."""
    draw = random.Random(seed)
    return [Trip(draw.sample(games, requests)) for _ in range(trips)]

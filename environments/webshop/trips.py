"""Trips: several requests, one after another, in one episode of WebShop.

A request is a goal of the canonical list, of whose options only the first few are asked for. Most of them hold a
*trap*, something that one kind of mistake fails on, which the engine tells by buying for the goal (`trap`):

* ``options``: two options are asked for, and one is easily forgotten;
* ``price``: the first hit of the request's words has the right title and costs too much;
* ``features``: the first hit lacks the feature that is asked for, which only the features page tells;
* ``search``: the request lists its words, and the first hit of the first word alone is another product.

A trip is of one kind: all of its requests but one hold that trap and no other, the last holds none. The kind is the
task's key, so that a skill bank may have skills by kind; the shopper does not see it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

from alignopsd_trl.environments.base import Opening, Step
from alignopsd_trl.environments.panel import SplitTasks
from alignopsd_trl.environments.webshop.engine import pages
from alignopsd_trl.environments.webshop.engine.goals import NO_BOUND, Goal
from alignopsd_trl.environments.webshop.engine.session import Effect, ShopSession
from alignopsd_trl.environments.webshop.engine.shop import Shop
from alignopsd_trl.environments.webshop.environment import Shopper, Shops

KINDS = ("options", "price", "features", "search")
PLAIN = ""
SIZES = {"train": 2000, "test": 1000}
SEEDS = {"train": 0, "test": 1}
TEST_SHARE = 4  # one request in so many is for testing

_WORDS = re.compile(r"^(?:find me|i need|looking for) (.*?)(?: that is .*?)?(?: with .*?)?(?:, and price lower .*)?$")


def asking(goal: Goal, options: int) -> Goal:
    """Returns a goal that asks for its first ``options`` options alone, worded like WebShop's synthetic goals."""
    kept = dict(list(goal["goal_options"].items())[:options])
    request = goal["instruction_text"].split(" with ")[0].split(", and price lower")[0]
    wished = ", and ".join(f"{name}: {value}" for name, value in kept.items())
    bound = goal["price_upper"]
    suffix = f", and price lower than {bound:.2f} dollars" if bound != NO_BOUND else ""
    return {**goal, "goal_options": kept, "instruction_text": request + (f" with {wished}" if kept else "") + suffix}


def trap(shop: Shop, goal: Goal) -> str | None:
    """Returns the one trap of a goal, `PLAIN` for none, `None` for several or for one that no first page shows."""
    asked = _WORDS.match(goal["instruction_text"])
    said = asked[1] if asked else ""
    words = said.replace(",", "")
    rows = shop.catalogue.search(words)[: shop.results_per_page]
    bought = [shop.buy(row, goal, goal["goal_options"]) for row in rows]
    if not any(score == 1.0 for score, _ in bought):
        return None
    traps = [name for name, part in (("price", "r_price"), ("features", "r_att")) if bought[0][1][part] < 1]
    if " that is " in goal["instruction_text"] and "features" not in traps:
        traps.append("asked for nothing")  # the feature is there, but a shopper who looks must look all the same
    if "," in said:
        first = shop.catalogue.search(words.split()[0])[0]
        traps.append("search" if shop.buy(first, goal, goal["goal_options"])[0] < 1 else "short")
    if len(goal["goal_options"]) > 1:
        traps.append("options")
    if not traps:
        return PLAIN
    return traps[0] if len(traps) == 1 and traps[0] in KINDS else None


class TripTasks(SplitTasks):
    """The trips of a shop, with ``task_id, category, goal_indices, asked_options, instruction``. Kinds take turns. No
    request of the test split occurs in training; products do, as in WebShop's own splits.

    Args:
        shops: an open shop.
        requests (`int`): of a trip.
    """

    environment = "webshop_trips"

    def __init__(self, shops: Shops, requests: int):
        self._shop, self._requests, self.suffix = shops.of_seed(None), requests, f"-{requests}"

    def _rows(self, split: str) -> list[dict[str, Any]]:
        draw = Random(SEEDS[split])
        return [self._row(split, number, draw) for number in range(SIZES[split])]

    @cached_property
    def _pools(self) -> Mapping[tuple[str, str], Sequence[tuple[int, int]]]:
        """Maps (split, trap) to goals with their number of options; every text occurs once."""
        kinds: dict[str, dict[str, tuple[int, int]]] = {kind: {} for kind in (*KINDS, PLAIN)}
        for index in range(len(self._shop.goals)):
            for options in (1, 2):
                asked = asking(self._shop.goal(index), options)
                kind = trap(self._shop, asked) if len(asked["goal_options"]) == options else None
                if kind is not None:
                    kinds[kind].setdefault(asked["instruction_text"], (index, options))
        return {
            (split, kind): tuple(
                goal for place, goal in enumerate(texts.values()) if (place % TEST_SHARE == 0) == tested
            )
            for kind, texts in kinds.items()
            for split, tested in (("train", False), ("test", True))
        }

    def _row(self, split: str, number: int, draw: Random) -> dict[str, Any]:
        kind = KINDS[number % len(KINDS)]
        traps = [kind] * max(1, self._requests - 1) + [PLAIN] * min(1, self._requests - 1)
        draw.shuffle(traps)
        chosen: list[tuple[int, int]] = []
        for name in traps:
            taken = {self._shop.goal(index)["query"] for index, _ in chosen}
            pool = [goal for goal in self._pools[split, name] if self._shop.goal(goal[0])["query"] not in taken]
            chosen.append(draw.choice(pool))
        texts = [asking(self._shop.goal(index), options)["instruction_text"] for index, options in chosen]
        return {
            "task_id": f"trip-{split}-{number:04d}",
            "category": kind,
            "goal_indices": [index for index, _ in chosen],
            "asked_options": [options for _, options in chosen],
            "instruction": "; ".join(texts),
        }


class TripEnvironment(Shopper):
    """One shopper on a trip. A purchase ends a request, the last purchase the trip. It is won if every purchase scored
    1.0, and its score is their mean. Each page shows its request."""

    def reset(
        self,
        goal_indices: Sequence[int],
        asked_options: Sequence[int],
        category: str = "",
        dynamics_seed: int = 0,
        **_: Any,
    ) -> Opening:
        """Starts a trip.

        Args:
            goal_indices: a goal of the canonical list for each request.
            asked_options: how many of its options each request asks for.
            category: the kind of the trip.
            dynamics_seed: of the random search ``<r>``.
        """
        self._shop = self._shops.of_seed(None)
        pairs = zip(goal_indices, asked_options, strict=True)
        self._goals = [asking(self._shop.goal(index), options) for index, options in pairs]
        self._scores: list[float] = []
        self._random = Random(dynamics_seed)
        self._enter()
        task = f"serve {len(self._goals)} requests, one after another; every purchase must be right"
        return Opening(self._observation(), task, self._admissible(), category=category, task_key=category or None)

    def step(self, action: str) -> Step:
        """Executes any string, as in WebShop, with ``requests_right`` in ``metrics`` and each purchase's breakdown.
        A right purchase is a milestone."""
        bought = len(self._scores)
        step = super().step(action)
        right = len(self._scores) > bought and self._scores[-1] == 1.0
        return replace(
            step,
            milestone=f"request {len(self._scores)} served" if right else None,
            metrics={**step.metrics, "requests_right": sum(score == 1.0 for score in self._scores)},
        )

    def _result(self, effect: Effect) -> tuple[bool, bool, float]:
        if effect.done:
            self._scores.append(float(effect.reward))
            if len(self._scores) < len(self._goals):
                self._enter()
        done = len(self._scores) == len(self._goals)
        return done, done and min(self._scores) == 1.0, sum(self._scores) / len(self._goals)

    def _enter(self) -> None:
        goal = self._goals[len(self._scores)]
        self._session = ShopSession(self._shop, goal, self._random)
        self._task_text = self._session.text.split(pages.SEPARATOR)[2]

    def _observation(self) -> str:
        number = min(len(self._scores) + 1, len(self._goals))
        head = f"'Request {number} of {len(self._goals)}'{pages.SEPARATOR}'{self._task_text}'"
        return f"{head}{pages.SEPARATOR}{super()._observation()}"

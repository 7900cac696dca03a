"""Thoughts of siblings with the decision that each was thought at, which an encoder should tell apart.

A decision is what a player stands before: the request, the page, what it has chosen and read so far; the question, the
names on its way and what the last query found. Two thoughts of one task are of the same decision if these are equal,
whatever words were used and whatever was decided.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignopsd_trl.environments.alfworld import pairs
from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.environments.searchqa import hops
from alignopsd_trl.environments.webshop.player import HABITS, ScriptedShopper, ShopPage, ShopRequest, since_opening
from alignopsd_trl.environments.webshop.trips import KINDS
from alignopsd_trl.results.play import evaluate
from assets.tiny_policies import hoppers, housekeepers
from assets.tiny_policies.demonstrations import episode
from assets.tiny_policies.situated import SituatedShopper, Situation

SIBLINGS = 6
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Thoughts:
    """A task's thoughts with sibling and decision of each."""

    texts: tuple[str, ...]
    siblings: tuple[int, ...]
    decisions: tuple[Key, ...]


def scripted(
    player: Callable[[Sequence[str], random.Random], Any],
    kinds: Sequence[str],
    decision: Callable[[View], Key],
    suite: Suite,
    rows: Sequence[Mapping[str, Any]],
    seed: int,
) -> Iterator[Thoughts]:
    """Of scripted players whose thinking states their situation, under no skill and under any."""
    draw, environment = random.Random(seed), suite.factory()
    for row in rows:
        players = [player(draw.sample(kinds, draw.randint(0, 1)), draw) for _ in range(SIBLINGS)]
        yield _played(environment, row, [one.answer for one in players], decision)


def in_the_shop(suite: Suite, rows: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Thoughts]:
    """Of scripted shoppers with one request, whose thinking is a template."""
    draw, environment = random.Random(seed), suite.factory()
    for row in rows:
        shoppers = [ScriptedShopper(draw.choice(HABITS), draw) for _ in range(SIBLINGS)]
        yield _played(environment, row, [lambda view, one=one: one.answer(view).text for one in shoppers], of_shop)


def of_policy(
    model: Any, tokenizer: Any, suite: Suite, rows: Sequence[Mapping[str, Any]], decision: Callable, **limits: Any
) -> Iterator[Thoughts]:
    """A policy's own, at temperature 1."""
    named = [{**row, "task_id": f"{row['task_id']} {number}"} for row in rows for number in range(SIBLINGS)]
    panel = TaskPanel.of(suite.name, "siblings", named)
    _, played = evaluate(model, tokenizer, suite.factory, panel, temperature=1.0, batch_size=100, **limits)
    environment = suite.factory()
    for place, row in enumerate(rows):
        own = played[place * SIBLINGS : (place + 1) * SIBLINGS]
        answers = [iter([turn.response_text for turn in one.turns]) for one in own]
        yield _played(environment, row, [lambda _, said=said: next(said, "") for said in answers], decision)


def of_trip(view: View) -> Key:
    """The decision of a view of a trip."""
    now = Situation.read(view)
    return (now.request, *_page(now.page), now.opened, tuple(sorted(now.chosen)), now.proven, bool(now.searches))


def of_shop(view: View) -> Key:
    """The decision of a view of WebShop."""
    request, page = ShopRequest.read(view.task_text), ShopPage.read(view.observation)
    actions = [record.action for record in view.history]
    done = since_opening(actions) if page.kind in ("item", "text") else []
    return (request, *_page(page), tuple(sorted(set(done))))


def of_hop(view: View) -> Key:
    """The decision of a view of a question of several hops."""
    now = hoppers.HopState.read(view)
    return (view.task_text, len(now.names), now.names, now.query, now.sent, now.passage)


def of_pair(view: View) -> Key:
    """The decision of a view of a game that asks for two things."""
    now = housekeepers.Situation.read(view)
    seen = tuple(sorted(now.inside.items()))
    return (view.task_text, now.delivered, now.here, now.carried, now.treated, now.closed, seen)


on_trips = partial(scripted, SituatedShopper, KINDS, of_trip)
over_hops = partial(scripted, hoppers.HopReader, hops.KINDS, of_hop)
over_pairs = partial(scripted, housekeepers.Housekeeper, pairs.KINDS, of_pair)


def _page(page: ShopPage) -> Key:
    if page.kind == "item":
        return (page.kind, page.product.title, page.product.price)
    return (page.kind, page.rows, page.pieces if page.kind == "text" else ())


def _played(
    environment: TextEnvironment,
    row: Mapping[str, Any],
    shoppers: Sequence[Callable[[View], str]],
    decision: Callable[[View], Key],
) -> Thoughts:
    texts, siblings, decisions = [], [], []
    for number, answer in enumerate(shoppers):
        views, responses, _ = episode(environment, row, answer)
        for view, response in zip(views, responses, strict=True):
            thought = response.partition("<think>")[2].partition("</think>")[0].strip()
            if thought:
                texts.append(thought)
                siblings.append(number)
                decisions.append(_plain(decision(view)))
    return Thoughts(tuple(texts), tuple(siblings), tuple(decisions))


def _plain(key: Key) -> Key:
    """A request holds a dict, so keys are compared by their text."""
    return tuple(map(repr, key))


WORLDS = {
    "webshop_trips": (on_trips, of_trip),
    "webshop_tiny": (in_the_shop, of_shop),
    "searchqa_hops": (over_hops, of_hop),
    "alfworld_pairs": (over_pairs, of_pair),
}

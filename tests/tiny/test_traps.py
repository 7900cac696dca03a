"""The worlds whose tasks hold a trap of a kind: whom a skill keeps out of it, and what the worlds refuse to be."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from alignopsd_trl.environments.alfworld import pairs
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.panel import SPLITS
from alignopsd_trl.environments.searchqa import hops
from alignopsd_trl.environments.webshop import trips
from assets.tiny_policies import hoppers, housekeepers, situated
from assets.tiny_policies.demonstrations import episode, success
from assets.tiny_policies.hoppers import HopReader
from assets.tiny_policies.housekeepers import Housekeeper
from assets.tiny_policies.situated import SituatedShopper
from assets.worlds.hops import QUOTA

HOPS = {split: quota * len(hops.KINDS) for split, quota in QUOTA.items()}


@pytest.mark.parametrize(
    ("world", "kinds", "player", "tasks", "heeded", "unheeded"),
    [
        ("webshop_trips", trips.KINDS, SituatedShopper, 200, 0.75, 0.5),
        ("searchqa_hops", hops.KINDS, HopReader, 160, 0.85, 0.6),
        ("alfworld_pairs", pairs.KINDS, Housekeeper, 200, 0.85, 0.6),
    ],
)
def test_heeding_the_fitting_skill_avoids_the_trap_and_another_does_not(
    world: str, kinds: Any, player: Any, tasks: int, heeded: float, unheeded: float
) -> None:
    own, other = {kind: [kind] for kind in kinds}, {kind: [one for one in kinds if one != kind] for kind in kinds}
    found = [success(load(world), player, heeds, tasks, 1) for heeds in ({}, own, other)]
    for kind in kinds:
        assert found[1][kind] > heeded and max(found[0][kind], found[2][kind]) < unheeded


def _states_of_hops(now: hoppers.HopState, thought: str) -> bool:
    pairs = [*zip(now.kinds, now.names, strict=True), *now.stated.items()]
    return all(f"{kind} {name}" in thought for kind, name in pairs) and now.wanted in thought


def _states_of_pairs(now: housekeepers.Situation, thought: str) -> bool:
    in_view = now.carried in thought and (now.carried or all(place in thought for place in now.unseen))
    return bool(in_view) and (f"one on {now.delivered[0][1]}" if now.delivered else " none") in thought


def _states_of_trips(now: situated.Situation, thought: str) -> bool:
    shown: list[Any] = [row.price for row in now.fitting] if now.page.kind == "results" else []
    shown += [now.page.product.price, *now.request.options.values()] if now.page.kind == "item" else []
    return all(str(one) in thought for one in shown)


@pytest.mark.parametrize(
    ("world", "player", "read", "states"),
    [
        ("webshop_trips", SituatedShopper, situated.Situation.read, _states_of_trips),
        ("searchqa_hops", HopReader, hoppers.HopState.read, _states_of_hops),
        ("alfworld_pairs", Housekeeper, housekeepers.Situation.read, _states_of_pairs),
    ],
)
def test_a_thought_states_the_situation(world: str, player: Any, read: Any, states: Any) -> None:
    suite, draw = load(world), random.Random(4)
    environment = suite.factory()
    for row in suite.panel("test").rows[:20]:
        views, responses, _ = episode(environment, row, player([], draw).answer)
        for view, response in zip(views, responses, strict=True):
            assert states(read(view), response.partition("</think>")[0]), response


@pytest.mark.parametrize(
    ("world", "kinds", "player", "least", "most"),
    [("searchqa_hops", hops.KINDS, HopReader, 4, 8), ("alfworld_pairs", pairs.KINDS, Housekeeper, 8, 13)],
)
def test_a_careful_player_wins_every_task(world: str, kinds: Any, player: Any, least: int, most: int) -> None:
    suite, careful = load(world), player(kinds, random.Random(0))
    careful._gives_in = lambda kind, habit: False
    environment = suite.factory()
    for row in suite.panel("test").rows:
        views, _, won = episode(environment, row, careful.answer)
        assert won and least <= len(views) <= most


@pytest.mark.parametrize(
    ("world", "kinds", "parts", "sizes"),
    [
        ("webshop_trips", trips.KINDS, lambda row: row["instruction"].split("; "), trips.SIZES),
        ("searchqa_hops", hops.KINDS, lambda row: [row["question"].split("the ", 1)[1].strip("?.")], HOPS),
        ("alfworld_pairs", pairs.KINDS, lambda row: [(row["task"], *sorted(row["places"]))], pairs.SIZES),
    ],
)
def test_splits_share_nothing_and_kinds_are_spread_evenly(world: str, kinds: Any, parts: Any, sizes: Any) -> None:
    suite = load(world)
    held = {split: {part for row in suite.tasks(split) for part in parts(row)} for split in SPLITS}
    assert not held["train"] & held["test"]
    for split in SPLITS:
        assert Counter(suite.tasks(split)["category"]) == dict.fromkeys(kinds, sizes[split] / len(kinds))
        assert world != "alfworld_pairs" or len(held[split]) == sizes[split], "no game twice"


REFUSED = {
    "webshop_trips": ({"human_goals": True}, {"requests": 0}, {"page": 3}),
    "searchqa_hops": ({"corpus": "x"}, {"backend": "dense"}, {"page": 3}),
    "alfworld_pairs": ({"games": "official"}, {"max_turns": 0}),
}


@pytest.mark.parametrize(("world", "options"), [(world, one) for world, every in REFUSED.items() for one in every])
def test_what_a_world_cannot_be_is_refused(world: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        load(world, **options)

"""The worlds whose tasks hold a trap of a kind: whom a skill keeps out of it, and what the worlds refuse to be."""

from __future__ import annotations

from typing import Any

import pytest

from alignopsd_trl.environments.alfworld import pairs
from alignopsd_trl.environments.loading import load
from alignopsd_trl.environments.searchqa import hops
from alignopsd_trl.environments.webshop import trips
from assets.tiny_policies.demonstrations import success
from assets.tiny_policies.hoppers import HopReader
from assets.tiny_policies.housekeepers import Housekeeper
from assets.tiny_policies.situated import SituatedShopper


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


REFUSED = {
    "webshop_trips": ({"human_goals": True}, {"requests": 0}, {"page": 3}),
    "searchqa_hops": ({"corpus": "x"}, {"backend": "dense"}, {"page": 3}),
    "alfworld_pairs": ({"games": "official"}, {"max_turns": 0}),
}


@pytest.mark.parametrize(("world", "options"), [(world, one) for world, every in REFUSED.items() for one in every])
def test_what_a_world_cannot_be_is_refused(world: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        load(world, **options)

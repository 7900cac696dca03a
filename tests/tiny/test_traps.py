"""The worlds whose tasks hold a trap of a kind: what they refuse to be."""

from __future__ import annotations

from typing import Any

import pytest

from alignopsd_trl.environments.loading import load

REFUSED = {
    "webshop_trips": ({"human_goals": True}, {"requests": 0}, {"page": 3}),
    "searchqa_hops": ({"corpus": "x"}, {"backend": "dense"}, {"page": 3}),
    "alfworld_pairs": ({"games": "official"}, {"max_turns": 0}),
}


@pytest.mark.parametrize(("world", "options"), [(world, one) for world, every in REFUSED.items() for one in every])
def test_what_a_world_cannot_be_is_refused(world: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        load(world, **options)

"""Colour words in the order in which they are tried (WebShop facts 10).

The table is a fact of the original WebShop's reward: MIT licence, (c) 2023 Princeton Natural Language Processing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

COLORS = tuple(
    """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
    ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow""".split()
)


@lru_cache(maxsize=1 << 15)
def normalize_color(value: Any) -> Any:
    """Returns the first colour word that a string contains (or that a pair has as an element), else the value."""
    return next((color for color in COLORS if color in value), value)

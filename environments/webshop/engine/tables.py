"""Colour words and size patterns, in the order in which they are tried (WebShop facts 10).

The tables are facts of the original WebShop's reward: MIT licence, (c) 2023 Princeton Natural Language Processing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
SIZES = (
    "xx-large", "3x-large", "4x-large", "5x-large", "x-large", "x-small", "medium", "large", "small", "queen", "twin",
    "full", "king", "one size", "pack", "(.*)neck(.*)sleeve", r"(.*) women \| (.*) men", "(.*)w x(.*)l",
    "(.*)w by (.*)l", "(.*)w x(.*)h", "(.*)wide", "(.*)x-wide", "(.*)narrow", "(.*)petite", "(.*)inch", "(.*)plus",
    "(.*)mm", "women(.*)", "(.*)x(.*)", "(.*)ft", "(.*)feet", "(.*)meter", "(.*)yards", r"(.*)\*(.*)", r"(.*)\-(.*)",
    r'(\d+)"$', r"(\d+)f$", r"(\d+)m$", r"(\d+)cm$", r"(\d+)g$",
)  # fmt: skip
NOT_MATCHED = "not_matched"
_SIZE_PATTERNS = tuple(re.compile(size) for size in SIZES)


@lru_cache(maxsize=1 << 15)
def normalize_color(value: Any) -> Any:
    """The first colour word that a string contains (or that a pair has as an element), else the value itself."""
    return next((color for color in COLORS if color in value), value)


def normalize_color_size(prices: Iterable[tuple[str, str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Colour and size classes of the (asin, colour, size) keys of a price table, for offline statistics."""
    colors, sizes = {"N.A.": NOT_MATCHED}, {"N.A.": NOT_MATCHED}
    for _, color, size in prices:
        colors[color.lower()] = next((word for word in COLORS if word in color.lower()), NOT_MATCHED)
        sizes[size.lower()] = _size_class(size.lower())
    return {**colors, "N.A.": NOT_MATCHED}, {**sizes, "N.A.": NOT_MATCHED}


def _size_class(size: str) -> str:
    for pattern in _SIZE_PATTERNS:
        if pattern.search(size):
            return pattern.pattern
    return "numeric_size" if size.replace(".", "", 1).isdigit() else NOT_MATCHED

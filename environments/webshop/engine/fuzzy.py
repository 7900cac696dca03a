"""Token-set similarity of two strings, with the numbers of thefuzz 0.19.0 on `difflib` (WebShop facts 9.5).

Newer releases of that library rest on rapidfuzz and give other numbers, some of which cross the reward's threshold.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

_LATIN_1 = {code: None for code in range(0x80, 0x100)}
_NON_WORD = re.compile(r"\W")
_CACHE = 1 << 17


@lru_cache(maxsize=_CACHE)
def similar(a: Any, b: Any, threshold: int = 85) -> bool:
    """Whether two values are more similar than a threshold from 0 to 100. Nothing is similar to ``None``; anything else
    is turned into text. Pairs whose letters rule it out are not measured."""
    sides = _sides(a, b)
    if sides is None:
        return False
    first, second, third = sides
    if first and first in (second, third):
        return threshold < 100
    pairs = ((first, second), (first, third), (second, third))
    return any(_reachable(x, y, threshold) and _ratio(x, y) > threshold for x, y in pairs)


@lru_cache(maxsize=_CACHE)
def _tokens(value: Any) -> frozenset[str]:
    cleaned = _NON_WORD.sub(" ", str(value).translate(_LATIN_1)).lower().strip()
    return frozenset(cleaned.split())


def _sides(a: Any, b: Any) -> tuple[str, str, str] | None:
    """Returns the common tokens, these with the rest of a, and these with the rest of b. None if a or b is empty."""
    if a is None or b is None:
        return None
    left, right = _tokens(a), _tokens(b)
    if not left or not right:
        return None
    common = " ".join(sorted(left & right))
    ours, theirs = " ".join(sorted(left - right)), " ".join(sorted(right - left))
    return common, f"{common} {ours}".strip(), f"{common} {theirs}".strip()


def _ratio(first: str, second: str) -> int:
    if first == second:
        return 100
    if not first or not second:
        return 0
    return int(round(100 * SequenceMatcher(None, first, second).ratio()))


def _reachable(first: str, second: str, threshold: int) -> bool:
    """Whether the ratio can exceed the threshold, by `difflib`'s own upper bounds. The second one is computed here,
    since its ``quick_ratio`` would prepare the whole comparison first."""
    if not first or not second:
        return first == second
    bar = (threshold + 0.5) / 100 - 1e-9  # rounding starts here
    if 2 * min(len(first), len(second)) / (len(first) + len(second)) < bar:
        return False
    ours, theirs = _letters(first), _letters(second)
    shared = sum(min(count, theirs.get(letter, 0)) for letter, count in ours.items())
    return 2 * shared / (len(first) + len(second)) >= bar


@lru_cache(maxsize=_CACHE)
def _letters(text: str) -> Counter[str]:
    return Counter(text)

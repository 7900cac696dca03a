"""The thinking in a response: parsed, or brought into the form that environments and methods know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from alignopsd_trl.rollout.options import THINK
from alignopsd_trl.turns import Thought

_FAMILIES = ("action", "search", "answer")
_OPENING = {tag: re.compile(rf"<{tag}\b", re.IGNORECASE) for tag in ("think", *_FAMILIES)}
_CLOSING = {tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in ("think", *_FAMILIES)}


def _first_block(tag: str, text: str) -> str | None:
    """Returns the inside of the first complete block of a tag. Linear in the text: if the first opening tag is never
    closed, no later one is."""
    opening = _OPENING[tag].search(text)
    start = text.find(">", opening.end()) if opening else -1
    closing = _CLOSING[tag].search(text, start + 1) if start >= 0 else None
    return text[start + 1 : closing.start()] if closing else None


def parse_response(text: str | None) -> Thought:
    """Returns thinking and action of a response, for correspondence (not for the environment, which has its own rules).

    The first complete think block gives the thinking; the first family among action, search, answer that has a
    complete block gives the action, wherever it stands, even if its block is blank. Opening tags may carry attributes,
    case does not matter, outer white space is stripped. Any string or ``None`` is legal. Source: method facts A.1 to
    A.3.
    """
    text = text or ""
    thinking = _first_block("think", text)
    action = next((body for tag in _FAMILIES if (body := _first_block(tag, text)) is not None), None)
    return Thought((thinking or "").strip(), (action or "").strip())


def canonical(text: str, tags: Sequence[str], opened: bool) -> str:
    """Returns a response with its thinking between ``<think>`` tags.

    Args:
        tags: that the response has in their place.
        opened: whether the prompt has opened the thinking.
    """
    first, last = tags
    if opened and first not in text.partition(last)[0]:
        text = first + text
    return text if tags == THINK else text.replace(first, THINK[0], 1).replace(last, THINK[1], 1)

"""Reduces each action to an operation, such as *take* or *purchase*, and its object.

Both are read from actions and observations, never from reasoning traces. The form of an action tells its environment:
WebShop (``search[..]``, ``click[..]``), Search-QA (``<search>..</search>``) or ALFWorld (``take apple 1 from shelf
2``). The operation of any other action is its first word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_WEBSHOP = re.compile(r"\s*(search|click)\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(r"\s*<(search|answer)>(.*)</\1>\s*", re.DOTALL | re.IGNORECASE)
_PRODUCT = re.compile(r"b[0-9a-z]{9}|\d{10}")
_TABS = ("description", "features", "reviews", "attributes")
_MOVES = ("back to search", "next >", "< prev")
_VERBS = ("go to", "look", "inventory")  # ALFWorld's verbs of several words, and verbs without an object


class Operation(NamedTuple):
    """An operation and its object.

    Attributes:
        kind: such as ``"product"`` or ``"take"``.
        entity: words that name the object; `None` if the action has no object that another rollout could act on too.
    """

    kind: str
    entity: tuple[str, ...] | None = None


def operations(actions: Sequence[str], observations: Sequence[str], valid: Sequence[bool]) -> list[Operation | None]:
    """Returns the operations of one episode, turn by turn; `None` for an action that did not parse.

    The entity of a product selection is that product. For WebShop's other clicks it is the product of the open page
    and, if present, the option or tab. A search or a move between pages has none.
    """
    found: list[Operation | None] = []
    product: str | None = None
    for action, observation, usable in zip(actions, observations, valid, strict=True):
        shop = _WEBSHOP.fullmatch(action or "")
        operation = (_shopping(shop, product) if shop else _plain(action or "")) if usable else None
        found.append(operation)
        if operation and operation.entity and operation.kind == "product":
            product = operation.entity[0]
        elif shop and "total results:" in (observation or "").lower() or operation == Operation("search"):
            product = None
    return found


def _shopping(match: re.Match, product: str | None) -> Operation:
    argument = match[2].strip().lower()
    if match[1].lower() == "search":
        return Operation("search")
    if argument in _MOVES:
        return Operation("navigation")
    if _PRODUCT.fullmatch(argument):
        return Operation("product", (argument,))
    on = (product,) if product else None
    if argument == "buy now":
        return Operation("purchase", on)
    return Operation("tab" if argument in _TABS else "option", on and (*on, argument))


def _plain(action: str) -> Operation | None:
    if tagged := _TAGGED.fullmatch(action):
        return Operation(tagged[1].lower(), (" ".join(tagged[2].lower().split()),))
    words = action.lower().split()
    if not words:
        return None
    kind = next((verb for verb in _VERBS if action.lower().strip().startswith(verb)), words[0])
    rest = " ".join(words)[len(kind) :].strip()
    return Operation(kind, (rest,) if rest else None)

"""Pages as pieces of visible text, and the two modes of showing them (WebShop facts 5 and 7).

A page is a list of `Piece`; the observation in mode ``text`` joins them, mode ``text_rich`` marks what can be clicked.
What can be clicked is derived from the same pieces, so that text and actions cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

SEPARATOR = " [SEP] "
_ASCII_SPACE = frozenset(" \t\n\f\r")


class Role(Enum):
    """The role of a piece of text."""

    TEXT = "text"
    BUTTON = "button"
    PRODUCT = "product"
    OPTION = "option"


class Piece(NamedTuple):
    """Visible text with its role; ``name`` is the option name of an option value."""

    text: str
    role: Role = Role.TEXT
    name: str = ""


def _buttons(*labels: str) -> tuple[Piece, ...]:
    return tuple(Piece(label, Role.BUTTON) for label in labels)


_BACK, _PREVIOUS, _NEXT = _buttons("Back to Search", "< Prev", "Next >")
_SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")


_RECEIPT = tuple(
    Piece(text)
    for text in (
        "Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)", "Purchased",
        "asin", "{asin}", "options", "{options}", "attrs", "None", "category", "None", "query", "None",
        "product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text", "category",
        "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)", "{reward}",
        "Reward Details ", "None",
    )
)  # fmt: skip
_FILLED_IN = [place for place, piece in enumerate(_RECEIPT) if piece.text.startswith("{")]


def instruction_pieces(instruction: str) -> tuple[Piece, ...]:
    return Piece("Instruction:"), Piece(instruction)


def search_page(instruction: str) -> list[Piece]:
    return [Piece("WebShop"), Piece("Instruction: "), Piece(instruction), *_buttons("Search")]


def results_page(page: int, total: int, products: Iterable[Mapping[str, Any]]) -> list[Piece]:
    """Returns the products of one page of results, without the instruction."""
    pieces = [_BACK, Piece(f"Page {page} (Total results: {total})")]
    pieces += [_PREVIOUS, _NEXT] if page > 1 else [_NEXT]
    for product in products:
        pieces += [Piece(product["asin"], Role.PRODUCT), Piece(product["name"]), Piece(product["Price"])]
    return pieces


def item_page(product: Mapping[str, Any], show_attributes: bool) -> list[Piece]:
    """Returns the page of one product, without the instruction."""
    pieces = [_BACK, _PREVIOUS]
    for name, values in product["options"].items():
        pieces.append(Piece(name))
        pieces += [Piece(value, Role.OPTION, name) for value in values]
    pieces += [Piece(product["name"]), Piece(f"Price: {product['Price']}"), Piece("Rating: N.A.")]
    return [*pieces, *_buttons(*_SUB_PAGES[: 4 if show_attributes else 3], "Buy Now")]


def sub_page(product: Mapping[str, Any], kind: str) -> list[Piece]:
    """Returns the description, features, reviews or attributes of a product, without the instruction."""
    listed = {"features": product["BulletPoints"], "attributes": product["Attributes"]}.get(kind, ())
    pieces = [_BACK, _PREVIOUS, *(Piece(f" {text}") for text in listed)]
    if kind == "description":
        pieces.append(Piece(product["Description"]))
    if kind == "attributes":
        pieces += [Piece(product[key]) for key in ("category", "query", "product_category")]
    return pieces


def done_page(asin: str, options: Mapping[str, str], reward: float) -> list[Piece]:
    """Returns the receipt. The goal is not shown (the reference prints ``None`` there)."""
    chosen = json.dumps(dict(options), sort_keys=True)
    for character in "<>&'":
        chosen = chosen.replace(character, f"\\u{ord(character):04x}")
    receipt = list(_RECEIPT)
    for place, text in zip(_FILLED_IN, (asin, chosen, str(reward)), strict=True):
        receipt[place] = Piece(text)
    return receipt


def plain_piece(text: str) -> str | None:
    """Returns a piece as mode ``text`` shows it; None if that shows nothing."""
    stripped = text.strip()
    if stripped or not text:
        return stripped or None
    return None if "\n" in text and _ASCII_SPACE.issuperset(text) else ""


def plain(pieces: Iterable[Piece]) -> str:
    """Returns a page in mode ``text``: the stripped pieces, joined."""
    return SEPARATOR.join(shown for piece in pieces if (shown := plain_piece(piece.text)) is not None)


def rich(pieces: Iterable[Piece], visited: Container[str] = (), address: str = "") -> str:
    """Returns a page in mode ``text_rich``.

    Args:
        visited: asins that were opened.
        address: the page's address; an option value in double quotes inside it shows as chosen.
    """
    shown = ""
    for text, role, _ in pieces:
        if _ASCII_SPACE.issuperset(text):
            if not text or "\n" in text:
                continue
            text = " "
        if role is Role.OPTION and f'"{text}"' in address:
            shown = f"You have clicked {text}.\n{shown}  [clicked button] {text} [clicked button_]\n"
        elif role is Role.TEXT:
            shown += f"{text}\n"
        else:
            word = "clicked button" if role is Role.PRODUCT and text in visited else "button"
            lead = {Role.BUTTON: "", Role.OPTION: "  ", Role.PRODUCT: "\n"}[role]
            shown += f"{lead}[{word}] {text} [{word.split()[0] + ' ' if ' ' in word else ''}button_]\n"
    return shown


def clickables(pieces: Sequence[Piece]) -> dict[str, Piece]:
    """Returns the clickable texts in the order in which they are listed: buttons, products, options. A repeated text
    keeps its first place and its last target."""
    found: dict[str, Piece] = {}
    for role in (Role.BUTTON, Role.PRODUCT, Role.OPTION):
        for piece in pieces:
            if piece.role is role:
                found[piece.text if role is Role.OPTION else piece.text.lower()] = piece
    return found

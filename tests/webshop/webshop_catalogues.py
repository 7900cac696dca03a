"""Small catalogues in the official format, written for one test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def entry(asin: str = "B000000001", **changes: Any) -> dict[str, Any]:
    """A raw product; a change to ``...`` removes the key."""
    raw = {
        "asin": asin,
        "name": f"Plain Cotton Shirt {asin}",
        "full_description": "A shirt.",
        "small_description": ["soft", "light"],
        "pricing": "$12.50",
        "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "green"}], "size": [{"value": "M"}]},
        "images": ["a.jpg"],
        "category": "fashion",
        "query": " Shirts ",
        "product_category": "Clothing › Men › Shirts",
    }
    return {key: value for key, value in {**raw, **changes}.items() if value is not ...}


def instruction(text: str | None = "find a shirt", **changes: Any) -> dict[str, Any]:
    raw = {"attributes": ["soft"], "instruction": text, "instruction_attributes": ["soft"]}
    return {key: value for key, value in {**raw, **changes}.items() if value is not ...}


def write(folder: Path, items: Any, attributes: Any = None, human: Any = None) -> Path:
    """The files of a catalogue; strings are written as they are. By default every product gets an instruction."""
    folder.mkdir(parents=True, exist_ok=True)
    if attributes is None:
        attributes = {item["asin"]: instruction() for item in items}
    for name, content in (("items_shuffle", items), ("items_ins_v2", attributes), ("items_human_ins", human)):
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder

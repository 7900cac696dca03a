"""Nouns of a product title, found by a rule, by spaCy or in a table (WebShop facts 9.2)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

Nouns = Callable[[str], tuple[str, ...]]

_TOKEN = re.compile(r"[^\W_]+(?:['.\-][^\W_]+)*")
_NO_NOUNS = frozenset(
    "a an and are as at be by for from in into is it its non not of on or our per the this to up with without you your "
    "mens womens listed".split()
)


def standin(title: str) -> tuple[str, ...]:
    """Returns lower-cased words with a letter that are no function words: the default, without a language model."""
    found = (token.lower() for token in _TOKEN.findall(title))
    return tuple(token for token in found if token not in _NO_NOUNS and any(map(str.isalpha, token)))


def spacy_nouns(model: str = "en_core_web_sm") -> Nouns:
    """Returns the tokens that spaCy tags as nouns or proper nouns, as for published numbers.

    Raises:
        ImportError: if spaCy or the model is not installed.
    """
    try:
        import spacy

        pipeline = spacy.load(model)
    except (ImportError, OSError) as error:
        remedy = f"pip install spacy && python -m spacy download {model}; or use nouns='standin'"
        raise ImportError(f"nouns='spacy' needs spaCy with the model {model!r} ({error}): {remedy}") from error
    return lambda title: tuple(token.text.lower() for token in pipeline(title) if token.pos_ in ("NOUN", "PROPN"))


def table_nouns(path: str | Path) -> Nouns:
    """Returns nouns from a JSON object title -> list of lower-cased nouns.

    Raises:
        ValueError: if the file is no such object; the returned function raises `KeyError` for an unlisted title.
    """
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    if not isinstance(table, dict) or not all(isinstance(nouns, list) for nouns in table.values()):
        raise ValueError(f"{path}: a noun table is a JSON object title -> list of lower-cased nouns")

    def look_up(title: str) -> tuple[str, ...]:
        if title not in table:
            raise KeyError(f"{path} has no nouns for the title {title!r}; add it or use nouns='standin'")
        return tuple(table[title])

    return look_up


def extractor(nouns: str | Nouns = "standin") -> tuple[str, Nouns]:
    """Returns a name for the records and the function of ``"standin"``, ``"spacy"``, a JSON table or a function."""
    if not isinstance(nouns, str):
        return getattr(nouns, "__qualname__", "custom"), _remembered(nouns)
    if nouns == "standin":
        return nouns, _remembered(standin)
    if nouns == "spacy":
        return "spacy:en_core_web_sm", _remembered(spacy_nouns())
    if nouns.endswith(".json"):
        return f"table:{Path(nouns).name}", _remembered(table_nouns(nouns))
    raise ValueError(f"nouns must be 'standin', 'spacy', a path that ends in .json or a function, got {nouns!r}")


def _remembered(nouns: Nouns) -> Nouns:
    return lru_cache(maxsize=1 << 14)(lambda title: tuple(nouns(title)))

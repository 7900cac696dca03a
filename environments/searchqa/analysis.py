"""From text to index terms, as Lucene's English analyser does it (the analyser behind the reference BM25 service).

Unicode word segmentation (UAX #29), possessive endings removed, lower case, 33 stop words dropped, Porter stems.
"""

from __future__ import annotations

import re

import regex

from environments.porter import stem

NAME = "lucene-english/1"
LONGEST_TOKEN = 255  # Lucene cuts longer tokens; the rest is a token of its own

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)

_ASCII = re.compile(
    r"\w+(?:(?:(?<=[A-Za-z])[.':](?=[A-Za-z])|(?<=[0-9])[.,;'](?=[0-9]))\w+)*",
    re.ASCII,
)

_MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
_LETTER = rf"[[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]--[\p{{LB=SA}}]]{_MARKS}"
_DIGIT = rf"\p{{WB=Numeric}}{_MARKS}"
_JOIN = (
    rf"(?:(?<={_LETTER})[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{_MARKS}(?={_LETTER})"
    rf"|(?<={_DIGIT})[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{_MARKS}(?={_DIGIT}))"
)
_PLAIN = rf"(?:{_LETTER}|{_DIGIT})+"
_CORE = rf"(?:{_PLAIN}(?:{_JOIN}{_PLAIN})*|(?:\p{{WB=Katakana}}{_MARKS})+)"
_LINK = rf"(?:\p{{WB=ExtendNumLet}}{_MARKS})"
_RUN = rf"{_LINK}*{_CORE}(?:{_LINK}+{_CORE})*{_LINK}*"
# Unicode 17 took symbols such as the black star out of the property; Lucene still indexes them.
_PICTURE = r"[\p{Extended_Pictographic}\p{EMod}\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705]"
_EMOJI = rf"{_PICTURE}(?:\p{{EMod}}|{_MARKS[:-1]})*"
_UNICODE = regex.compile(
    rf"{_RUN}|(?:\p{{LB=SA}}{_MARKS})+|[\p{{Han}}\p{{Hiragana}}]{_MARKS}"
    rf"|\p{{Regional_Indicator}}{{2}}|{_EMOJI}(?:(?<=\u200D){_EMOJI})*",
    regex.VERSION1,
)
_POSSESSIVE = re.compile(r"['\u2019\uff07][sS]$")
_LOWER_BY_LETTER = str.maketrans({"\u0130": "i", "\u03a3": "\u03c3"})  # where str.lower looks at more than the letter


def terms(text: str) -> list[str]:
    """The index terms of a text, in order, with repetitions."""
    return [found for token in tokens(text) if (found := term(token))]


def tokens(text: str) -> list[str]:
    """The words of a text as they stand in it."""
    found = (_ASCII if text.isascii() else _UNICODE).findall(text)
    if found and len(max(found, key=len)) > LONGEST_TOKEN:
        found = [token[i : i + LONGEST_TOKEN] for token in found for i in range(0, len(token), LONGEST_TOKEN)]
    return found


def term(token: str) -> str:
    """The index term of one token; empty for a stop word and for a token of underscores alone."""
    word = _POSSESSIVE.sub("", token).translate(_LOWER_BY_LETTER).lower()
    return stem(word) if word not in STOP_WORDS and word.strip("_") else ""

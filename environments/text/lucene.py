"""Lucene's English analyser: from text to index terms by word segmentation, possessives, stop words, Porter stems.

It is the analyser behind both reference engines: WebShop's index and Search-R1's BM25 service. The word rules are those
of UAX #29 (word boundaries): a word is one run of letters, digits and connectors; ideographs, hiragana letters and
emoji sequences stand alone; runs of south-east Asian scripts without spaces are one token each. Accents and full-width
forms are not folded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import regex

from alignopsd_trl.environments.text.porter import stem

NAME = "lucene-english/2"
MAX_TOKEN_UNITS = 255  # UTF-16 units, as the reference cuts
_WINDOW = 4 * MAX_TOKEN_UNITS
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
_POSSESSIVES = tuple(mark + letter for mark in "'\u2019\uff07" for letter in "sS")
_LOWER_BY_LETTER = str.maketrans({"\u0130": "i", "\u03a3": "\u03c3"})  # where str.lower looks at more than the letter
# Extended_Pictographic as of Emoji 11 to 15. Unicode 17 took symbols such as the black star out of it, so the property
# of the installed Unicode version can't be used.
_PICTOGRAPHS = (
    r"\u00A9\u00AE\u203C\u2049\u2122\u2139\u2194-\u2199\u21A9\u21AA\u231A\u231B\u2328\u2388\u23CF\u23E9-\u23F3"
    r"\u23F8-\u23FA\u24C2\u25AA\u25AB\u25B6\u25C0\u25FB-\u25FE\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    r"\u2708-\u2712\u2714\u2716\u271D\u2721\u2728\u2733\u2734\u2744\u2747\u274C\u274E\u2753-\u2755\u2757\u2763-\u2767"
    r"\u2795-\u2797\u27A1\u27B0\u27BF\u2934\u2935\u2B05-\u2B07\u2B1B\u2B1C\u2B50\u2B55\u3030\u303D\u3297\u3299"
    r"\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F\U0001F12F\U0001F16C-\U0001F171\U0001F17E\U0001F17F\U0001F18E"
    r"\U0001F191-\U0001F19A\U0001F1AD-\U0001F1E5\U0001F201-\U0001F20F\U0001F21A\U0001F22F\U0001F232-\U0001F23A"
    r"\U0001F23C-\U0001F23F\U0001F249-\U0001F3FA\U0001F400-\U0001F53D\U0001F546-\U0001F64F\U0001F680-\U0001F6FF"
    r"\U0001F774-\U0001F77F\U0001F7D5-\U0001F7FF\U0001F80C-\U0001F80F\U0001F848-\U0001F84F\U0001F85A-\U0001F85F"
    r"\U0001F888-\U0001F88F\U0001F8AE-\U0001F8FF\U0001F90C-\U0001F93A\U0001F93C-\U0001F945\U0001F947-\U0001FFFD"
)


def _pattern() -> str:
    extend = r"[\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}]*"

    def unit(characters: str) -> str:
        return f"(?:{characters}{extend})"

    letter = unit(r"[\p{WB=ALetter}\p{WB=Hebrew_Letter}]")
    hebrew = unit(r"\p{WB=Hebrew_Letter}")
    digit = unit(r"[\p{WB=Numeric}\uFF10-\uFF19]")
    katakana = unit(r"\p{WB=Katakana}")
    connector = unit(r"\p{WB=ExtendNumLet}")
    in_letters = unit(r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}]")
    in_digits = unit(r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]")
    single_quote, double_quote = unit(r"\p{WB=Single_Quote}"), unit(r"\p{WB=Double_Quote}")
    letters = f"{letter}(?:(?:{connector}*|{in_letters}){letter})*"
    digits = f"{digit}(?:(?:{connector}*|{in_digits}){digit})*"
    hebrew_run = f"{hebrew}(?:{double_quote}{hebrew}|{single_quote}(?!{letter}))"
    kana = f"{katakana}(?:{connector}*{katakana})*"
    part = f"(?:{kana}|(?:{hebrew_run}|{digits}|{letters})+)"
    word = f"{connector}*{part}(?:{connector}+{part})*{connector}*"
    flag = r"\p{RI}\p{RI}"
    modified = rf"(?:[{_PICTOGRAPHS}](?:\p{{Emoji_Modifier}}|\uFE0F?\u20E3?|[\p{{WB=Extend}}--\uFE0E])*)"
    keycap = r"[0-9#*]\uFE0F?\u20E3"
    tagged = r"(?:[\U000E0020-\U000E007E]+\U000E007F)?"
    emoji = rf"(?:{keycap}|{flag}|{modified}{tagged}(?:\u200D{modified}{tagged})*|\p{{Emoji_Modifier}}){extend}"
    alone = unit(r"[\p{Han}\p{Hiragana}]")
    complex_script = rf"(?:\p{{LB=SA}}{extend})+"
    # Connectors without a word are consumed at once: retrying at each of them would take quadratic time.
    return f"({word}|{emoji}|{complex_script}|{alone})|{connector}+"


_WORDS = regex.compile(_pattern(), regex.V1)
_ASCII_WORDS = re.compile(
    r"(_*(?:[A-Za-z](?:(?:_*|[.':])[A-Za-z])*|[0-9](?:(?:_*|[.',;])[0-9])*)+"
    r"(?:_+(?:[A-Za-z](?:(?:_*|[.':])[A-Za-z])*|[0-9](?:(?:_*|[.',;])[0-9])*)+)*_*)|_+"
)


def words(text: str) -> Iterator[str]:
    """Returns the words of a text unchanged and in order, long ones cut into pieces of at most 255 UTF-16 units."""
    if text.isascii() and len(text) < 1 << 20:
        found = [word for word in _ASCII_WORDS.findall(text) if word]
        if max(map(len, found), default=0) <= MAX_TOKEN_UNITS:
            yield from found
            return
    yield from _cut_words(text)


def _cut_words(text: str) -> Iterator[str]:
    """Searches one window at a time, since a token of any length is cut after 255 units anyway."""
    position = 0
    while position < len(text):
        window = min(len(text), position + _WINDOW)
        match = _WORDS.search(text, position, window)
        if match is None:
            position = window if window == len(text) else window - MAX_TOKEN_UNITS
        elif match.end() == window < len(text) and match.start() > position:
            position = match.start()  # it may go on behind the window
        else:
            limit = _limit(text, match.start())
            if match.end() > limit:
                match = _WORDS.match(text, match.start(), limit)
            position = match.end()
            if match[1] is not None:
                yield match[1]


def _limit(text: str, start: int) -> int:
    """Returns the end of the longest piece from ``start`` that fits into 255 UTF-16 units."""
    if text.isascii():
        return start + MAX_TOKEN_UNITS
    units = 0
    for end in range(start, min(len(text), start + MAX_TOKEN_UNITS + 1)):
        units += 2 if ord(text[end]) > 0xFFFF else 1
        if units > MAX_TOKEN_UNITS:
            return end
    return len(text)


@lru_cache(maxsize=1 << 17)
def term(word: str) -> str:
    """Returns the index term of a word; empty for a stop word."""
    word = (word[:-2] if word.endswith(_POSSESSIVES) else word).translate(_LOWER_BY_LETTER).lower()
    return "" if word in STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """Returns the index terms of a text in order, repetitions kept."""
    return [found for word in words(text) if (found := term(word))]

"""Porter's stemmer (M. F. Porter, "An algorithm for suffix stripping", 1980, with the author's later ``bli`` and
``logi`` rules), as Lucene's English analyser applies it. Words of one or two letters stay as they are."""

from __future__ import annotations

import re
from functools import lru_cache

_CONSONANT, _VOWEL = "[^aeiou]", "[aeiouy]"
_C = f"(?:{_CONSONANT}[^aeiouy]*)"
_V = f"(?:{_VOWEL}[aeiou]*)"

_M_ABOVE_0 = re.compile(f"^{_C}?{_V}{_C}")
_M_EXACTLY_1 = re.compile(f"^{_C}?{_V}{_C}{_V}?$")
_M_ABOVE_1 = re.compile(f"^{_C}?{_V}{_C}{_V}{_C}")
_HAS_VOWEL = re.compile(f"^{_C}?{_VOWEL}")
_CVC = re.compile(f"^{_C}{_VOWEL}[^aeiouwxy]$")
_DOUBLE = re.compile(r"([^aeioulsz])\1$")

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def _ending(suffixes: dict[str, str] | tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"^(.+?)({'|'.join(sorted(suffixes, key=len, reverse=True))})$")


_ENDS_2, _ENDS_3, _ENDS_4 = _ending(_STEP_2), _ending(_STEP_3), _ending(_STEP_4)


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if len(word) <= 2:
        return word
    marked = "Y" + word[1:] if word[0] == "y" else word
    for step in (_plurals, _past, _final_y, _double_suffixes, _single_suffixes, _residues, _final_e):
        marked = step(marked)
    return "y" + marked[1:] if word[0] == "y" else marked


def _plurals(word: str) -> str:
    if word.endswith("sses") or word.endswith("ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _M_ABOVE_0.match(word[:-3]) else word
    for suffix in ("ed", "ing"):
        base = word.removesuffix(suffix)
        if base != word:
            return _restore(base) if _HAS_VOWEL.match(base) else word
    return word


def _restore(base: str) -> str:
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _DOUBLE.search(base):
        return base[:-1]
    return base + "e" if _CVC.match(base) else base


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _HAS_VOWEL.match(word[:-1]) else word


def _double_suffixes(word: str) -> str:
    return _replace(word, _ENDS_2, _STEP_2)


def _single_suffixes(word: str) -> str:
    return _replace(word, _ENDS_3, _STEP_3)


def _replace(word: str, endings: re.Pattern[str], table: dict[str, str]) -> str:
    match = endings.match(word)
    return match[1] + table[match[2]] if match and _M_ABOVE_0.match(match[1]) else word


def _residues(word: str) -> str:
    match = _ENDS_4.match(word)
    if not match or not _M_ABOVE_1.match(match[1]) or (match[2] == "ion" and match[1][-1] not in "st"):
        return word
    return match[1]


def _final_e(word: str) -> str:
    if word.endswith("e"):
        base = word[:-1]
        if _M_ABOVE_1.match(base) or (_M_EXACTLY_1.match(base) and not _CVC.match(base)):
            word = base
    return word[:-1] if word.endswith("ll") and _M_ABOVE_1.match(word) else word

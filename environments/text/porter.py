"""Porter's 1980 stemmer with its author's later `bli` and `logi` revisions, as the reference search engine applies it.

Words of one or two letters are left alone; every character outside of a to z counts as a consonant.
Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, and his published revisions.
"""

from __future__ import annotations

from functools import lru_cache

_VOWELS = frozenset("aeiou")

_STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate",
    "iti", "ous", "ive", "ize",
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Returns the stem of a lower-case word."""
    if len(word) <= 2:
        return word
    word = _step_1(word)
    word = _replace(word, _STEP_2)
    word = _replace(word, _STEP_3)
    word = _step_4(word)
    return _step_5(word)


def _shape(word: str) -> str:
    """Returns one letter per character: ``v`` for a vowel, ``c`` for a consonant (`y` is a vowel after a consonant)."""
    shape: list[str] = []
    for character in word:
        vowel = character in _VOWELS or (character == "y" and bool(shape) and shape[-1] == "c")
        shape.append("v" if vowel else "c")
    return "".join(shape)


def _measure(stem: str) -> int:
    """Returns the number of vowel-consonant sequences in ``[C](VC)^m[V]``."""
    return _shape(stem).count("vc")


def _has_vowel(stem: str) -> bool:
    return "v" in _shape(stem)


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short_syllable(word: str) -> bool:
    """Whether a stem ends consonant-vowel-consonant, the last one not w, x or y."""
    return len(word) > 2 and _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _step_1(word: str) -> str:
    """Removes plurals, -ed and -ing, and changes a final y."""
    if word.endswith("sses") or word.endswith("ies"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    elif word.endswith("ed") and _has_vowel(word[:-2]):
        word = _tidy(word[:-2])
    elif word.endswith("ing") and _has_vowel(word[:-3]):
        word = _tidy(word[:-3])
    return word[:-1] + "i" if word.endswith("y") and _has_vowel(word[:-1]) else word


def _tidy(word: str) -> str:
    """Restores letters that the removal of -ed or -ing took with it."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _doubled(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _short_syllable(word) else word


def _replace(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Replaces the longest suffix that fits. It decides even if its stem is too short to change."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure(stem) > 0 else word
    return word


def _step_4(word: str) -> str:
    for suffix in _STEP_4:
        if word.endswith(suffix):
            stem = word[: -len(suffix)] if suffix[1:] != "ion" else word[:-3]
            return stem if _measure(stem) > 1 else word
    return word


def _step_5(word: str) -> str:
    """Removes a final -e and reduces -ll."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_syllable(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word

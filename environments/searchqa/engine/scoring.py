"""Exact match of Search-R1: the normal form of an answer, and the verdict.

Sources: Search-R1 (arXiv:2503.09516) and the appendix "Search-QA" of the AlignOPSD paper.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation, then without articles, then with single blanks.

    The order matters: ``The-Who`` becomes ``thewho``. There is no accent folding and no Unicode normalisation.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def accepted(golden_answers: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the accepted answers as a tuple; one string counts as a list of one."""
    return (golden_answers,) if isinstance(golden_answers, str) else tuple(golden_answers)


def exact_match(answer: str | None, golden_answers: str | Sequence[str]) -> float:
    """Returns 1.0 if the answer has the normal form of an accepted answer, else 0.0 (also without an answer)."""
    if answer is None:
        return 0.0
    return float(normalise(answer) in {normalise(golden) for golden in accepted(golden_answers)})


def contains_match(answer: str | None, golden_answers: str | Sequence[str]) -> float:
    """Returns 1.0 if an accepted answer is contained in the answer (normal forms), else 0.0. For diagnostics only."""
    if answer is None:
        return 0.0
    normal = normalise(answer)
    return float(any(normalise(golden) in normal for golden in accepted(golden_answers)))

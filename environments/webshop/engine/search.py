"""BM25 over one document per product, with the rankings of the reference engine (WebShop facts 8).

Postings are compressed sparse rows: for term t, ``documents[start[t]:start[t+1]]`` (int32, ascending) and
``counts[...]`` (uint16). Documents are numbered by ascending asin, so ties need no look-up. Arithmetic is in 64-bit
floats in the order of the query's terms; the final score is rounded to 32 bits before ranking.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from alignopsd_trl.environments.text import bm25
from alignopsd_trl.environments.text.lucene import term, terms, words

RETURN_N = 50


def document_text(product: Mapping) -> str:
    """Returns title, description, first bullet and options of a product, lower-cased."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product["options"].items())
    bullet = product["BulletPoints"][0] if product["BulletPoints"] else ""
    return " ".join([product["name"], product["Description"], bullet, options]).lower()


class PostingsBuilder:
    """Collects documents in any order; `arrays` returns their postings."""

    def __init__(self) -> None:
        self._vocabulary: dict[str, int] = {}
        self._ids: dict[str, int] = {}  # word -> term number, -1 for a stop word
        self._terms, self._documents = array("i"), array("i")
        self._counts = array("H")
        self._lengths: list[int] = []

    def add(self, text: str) -> None:
        """Adds the next document, a lower-cased text."""
        ids = self._ids
        found = [ids[word] if word in ids else self._number(word) for word in words(text)]
        counts = Counter(number for number in found if number >= 0)
        document = len(self._lengths)
        self._lengths.append(counts.total())
        self._terms.extend(counts)
        self._counts.extend(min(count, 0xFFFF) for count in counts.values())
        self._documents.extend([document] * len(counts))

    def _number(self, word: str) -> int:
        found = term(word)
        number = -1 if not found else self._vocabulary.setdefault(found, len(self._vocabulary))
        self._ids[word] = number
        return number

    def arrays(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the postings with document i renumbered to ``position[i]`` (a permutation, int)."""
        names = sorted(self._vocabulary)
        rank = np.empty(len(names), np.int32)
        rank[[self._vocabulary[name] for name in names]] = np.arange(len(names), dtype=np.int32)
        terms_ = rank[np.frombuffer(self._terms, np.int32)] if names else np.empty(0, np.int32)
        documents = position.astype(np.int32)[np.frombuffer(self._documents, np.int32)]
        counts = np.frombuffer(self._counts, np.uint16)
        order = np.lexsort((documents, terms_))
        lengths = np.zeros(len(position), np.int64)
        lengths[position] = self._lengths
        spelled = [name.encode() for name in names]
        return {
            "term_text": np.frombuffer(b"".join(spelled), np.uint8),
            "term_start": np.concatenate([[0], np.cumsum([len(name) for name in spelled])]).astype(np.int64),
            "posting_start": np.searchsorted(terms_[order], np.arange(len(names) + 1)).astype(np.int64),
            "posting_documents": documents[order],
            "posting_counts": counts[order],
            "document_norm": bm25.norms(lengths),
            "documents_with_text": np.array([int((lengths > 0).sum())], np.int64),
        }


class Searcher:
    """Ranks documents; the arrays may be memory-mapped."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self._text, self._starts = arrays["term_text"], arrays["term_start"]
        self._posting_start = arrays["posting_start"]
        self._documents, self._counts = arrays["posting_documents"], arrays["posting_counts"]
        self._norm = arrays["document_norm"]
        self._filled = int(arrays["documents_with_text"][0])
        self._number = lru_cache(maxsize=1 << 14)(self._find)

    def rank(self, query: str, limit: int = RETURN_N) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best documents of a query: numbers (int64) and scores (float32), best first, ties by number."""
        scores = np.zeros(len(self._norm))
        for name, repeated in Counter(terms(query.lower())).items():
            number = self._number(name)
            if number is not None:
                self._add(scores, number, repeated)
        matched = np.flatnonzero(scores > 0)  # idf is positive, so every match is
        return _best(matched, scores[matched].astype(np.float32), limit)

    def _add(self, scores: np.ndarray, number: int, repeated: int) -> None:
        part = slice(self._posting_start[number], self._posting_start[number + 1])
        documents, counts = self._documents[part], self._counts[part].astype(np.float64)
        idf = bm25.idf(self._filled, len(documents))
        scores[documents] += bm25.weight(repeated * idf, counts, self._norm[documents])

    def _find(self, name: str) -> int | None:
        wanted, starts = name.encode(), self._starts
        place = bisect_left(range(len(starts) - 1), wanted, key=self._spelling)
        return place if place < len(starts) - 1 and self._spelling(place) == wanted else None

    def _spelling(self, number: int) -> bytes:
        return self._text[self._starts[number] : self._starts[number + 1]].tobytes()


def _best(documents: np.ndarray, scores: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    documents, scores = bm25.best(documents, scores, limit)
    order = np.lexsort((documents, -scores))[:limit]
    return documents[order].astype(np.int64), scores[order]

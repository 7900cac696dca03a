"""BM25 as Lucene computes it: k1 = 0.9, b = 0.4, no (k1 + 1) factor, lengths quantised to one byte.

Both search engines of this project use it, for WebShop's products and for Search-QA's passages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

K1, B = 0.9, 0.4


def quantised(lengths: np.ndarray) -> np.ndarray:
    """Returns lengths as Lucene stores them, int64: exact below 40, else 24 plus four significant bits of the rest."""
    rest = np.maximum(lengths.astype(np.int64) - 24, 1)
    shift = np.maximum(np.frexp(rest.astype(np.float64))[1] - 4, 0)
    return np.where(lengths < 40, lengths, 24 + ((rest >> shift) << shift))


def norms(lengths: np.ndarray) -> np.ndarray:
    """Returns ``k1 * (1 - b + b * length / average)`` of every document, (N,) float64. Documents without a term do not
    count in the average."""
    filled = int(np.count_nonzero(lengths))
    average = lengths.sum() / filled if filled else 1.0
    return K1 * (1 - B + B * quantised(lengths).astype(np.float64) / average)


def idf(filled: int, frequency: Any) -> Any:
    """Returns the idf of terms that occur in ``frequency`` (a number or an array) of ``filled`` documents, float64."""
    return np.log(1 + (filled - frequency + 0.5) / (frequency + 0.5))


def weight(idf: np.ndarray, counts: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """Returns a term's part in the score of documents with norms ``norm`` in which it occurs ``counts`` times."""
    return idf * counts / (counts + norm)


def best(documents: np.ndarray, scores: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the documents that can be among the ``limit`` best, with their scores; ties at the limit stay in."""
    if limit >= len(documents):
        return documents, scores
    kept = scores >= np.partition(scores, len(scores) - limit)[len(scores) - limit]
    return documents[kept], scores[kept]

"""BM25 over a local corpus: scores as Lucene computes them, with an index on disk.

k1 = 0.9, b = 0.4, no (k1 + 1) factor, document lengths quantised to one byte as Lucene does, scores summed in double
precision and rounded to single. The index is a folder of arrays that all processes map into memory.
"""

from __future__ import annotations

import heapq
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from alignopsd_trl.environments.cache import draft_folder
from alignopsd_trl.environments.searchqa.engine.corpus import Corpus, CorpusError
from alignopsd_trl.environments.searchqa.engine.retrieval import LocalRetriever, Outcome, Passage
from alignopsd_trl.environments.text import lucene
from alignopsd_trl.environments.text.bm25 import K1, B, best, idf, norms, weight

FOLDER_NAME = "bm25"
_MANIFEST = "manifest.json"
_OFFSETS = "offsets.npy"
_VOCABULARY = "vocab.index.json"
_ARRAYS = ("indptr", "indices", "data")
_CHUNK = 50_000  # passages that are counted at a time while an index is built


class _Counts(NamedTuple):
    """Term counts of some consecutive passages, sorted by (term, passage); all int32."""

    terms: np.ndarray
    passages: np.ndarray
    counts: np.ndarray


class _Index(NamedTuple):
    """What each term adds to the score of each passage. The passages of term t are ``indices[indptr[t]:indptr[t + 1]]``
    (int32), their scores the same part of ``data`` (float32)."""

    vocabulary: dict[str, int]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class BM25Retriever(LocalRetriever):
    """Searches a corpus by BM25.

    Args:
        corpus: the passages.
        index: folder of the saved index; built there first if it does not exist. None keeps the index in memory,
            which suits small corpora.
        progress: shows a bar while an index is built.

    Raises:
        CorpusError: on a broken corpus, on an index that is broken or belongs to another corpus.
    """

    def __init__(self, corpus: Corpus, index: str | Path | None = None, progress: bool = False):
        super().__init__()
        self.corpus = corpus
        if index is None:
            self._index = _build(corpus, progress)
        else:
            if not Path(index).exists():
                _save(_build(corpus, progress), corpus, Path(index))
            self._index = _load(corpus, Path(index))
        self._starts, self._rows, self._weights = map(np.asarray, self._index[1:])  # views: a memmap is slow to slice
        self._total = np.zeros(len(corpus))  # scratch, all zero between searches
        self.description = {"backend": "bm25", "corpus": corpus.checksum[:16], "passages": len(corpus),
                            "k1": K1, "b": B, "analyser": lucene.NAME}  # fmt: skip

    def _searched(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """Returns passages that share a term with the query, best first."""
        return [self._hits(query, k) for query in queries]

    def _hits(self, query: str, k: int) -> list[Passage]:
        vocabulary = self._index.vocabulary
        ids = [vocabulary[term] for term in lucene.terms(query) if term in vocabulary]
        if not ids or k <= 0:
            return []
        rows, scores = self._candidates(ids, k)
        return [self.corpus.passage(row, score) for row, score in top(rows, scores, k)]

    def _candidates(self, ids: Sequence[int], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows that may be among the best ``k``, with their scores (float32).

        The ``k``-th best row of a rare term bounds the ``k``-th best of all from below.
        """
        spans = [slice(*self._starts[number : number + 2].tolist()) for number in ids]
        total = self._total
        for span in spans:
            np.add.at(total, self._rows[span], self._weights[span].astype(np.float64))
        sizes = [(span.stop - span.start, span.start, span) for span in spans if span.stop - span.start >= k]
        some = total[self._rows[min(sizes)[2]]] if sizes else np.zeros(k)
        bound = np.partition(some, len(some) - k)[len(some) - k] * (1 - 1e-6)  # equal after rounding must stay in
        rows = np.flatnonzero(total >= max(bound, np.finfo(np.float64).tiny))
        scores = total[rows].astype(np.float32)
        for span in spans:
            total[self._rows[span]] = 0.0
        return rows, scores


def top(rows: np.ndarray, scores: np.ndarray, k: int) -> list[tuple[int, float]]:
    """Returns the ``k`` best rows with their scores. Ties are ordered by the row number as text ("255" before "29"),
    the order of string ids in the reference service."""
    rows, scores = best(rows, scores, k)
    pairs = zip(rows.tolist(), scores.tolist(), strict=True)
    return heapq.nsmallest(k, pairs, key=lambda pair: (-pair[1], str(pair[0])))


def _build(corpus: Corpus, progress: bool) -> _Index:
    """Builds the index by array operations, a chunk at a time."""
    vocabulary, chunks, lengths = _count(corpus, progress)
    frequency = np.zeros(len(vocabulary), dtype=np.int64)
    for chunk in chunks:
        frequency += np.bincount(chunk.terms, minlength=len(frequency))
    indptr = np.concatenate(([0], np.cumsum(frequency)))
    rarity, norm = idf(max(1, int(np.count_nonzero(lengths))), frequency), norms(lengths)
    data, indices = np.empty(indptr[-1], dtype=np.float32), np.empty(indptr[-1], dtype=np.int32)
    filled = indptr[:-1].copy()
    for chunk in chunks:
        here = np.bincount(chunk.terms, minlength=len(frequency))
        within = np.arange(len(chunk.terms)) - np.repeat(np.cumsum(here) - here, here)
        where = filled[chunk.terms] + within
        data[where] = weight(rarity[chunk.terms], chunk.counts, norm[chunk.passages])
        indices[where] = chunk.passages
        filled += here
    return _Index(vocabulary, indptr, indices, data)


def _count(corpus: Corpus, progress: bool) -> tuple[dict[str, int], list[_Counts], np.ndarray]:
    """Returns the number of each term, the counts of the passages, and how many terms each has, (N,) int64."""
    numbers = _TermNumbers()
    chunks: list[_Counts] = []
    lengths = np.zeros(len(corpus), dtype=np.int64)
    terms, passages = array("i"), array("i")
    for row_number, row in enumerate(tqdm(corpus, total=len(corpus), desc="BM25 index", disable=not progress)):
        known = [number for token in lucene.words(row["contents"]) if (number := numbers[token]) >= 0]
        terms.extend(known)
        passages.extend([row_number] * len(known))
        lengths[row_number] = len(known)
        if row_number % _CHUNK == _CHUNK - 1:
            chunks.append(_merge(terms, passages))
            terms, passages = array("i"), array("i")
    chunks.append(_merge(terms, passages))
    return numbers.vocabulary, chunks, lengths


class _TermNumbers(dict[str, int]):
    """Maps a token of a text to the number of its term, -1 if it has none; each token is analysed once."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary: dict[str, int] = {"": 0}  # the empty term, which no text has, is part of the format

    def __missing__(self, token: str) -> int:
        term = lucene.term(token)
        self[token] = self.vocabulary.setdefault(term, len(self.vocabulary)) if term else -1
        return self[token]


def _merge(terms: array[int], passages: array[int]) -> _Counts:
    """Merges equal (term, passage) pairs of a chunk into one entry with a count."""
    ids = np.frombuffer(terms, dtype=np.int32) if terms else np.empty(0, dtype=np.int32)
    rows = np.frombuffer(passages, dtype=np.int32) if passages else np.empty(0, dtype=np.int32)
    pairs, counts = np.unique(ids.astype(np.int64) << 32 | rows, return_counts=True)
    return _Counts((pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), counts.astype(np.int32))


def _identity(corpus: Corpus) -> dict[str, Any]:
    """Returns the properties of corpus and code that an index depends on."""
    return {"format": "searchqa-bm25/1", "corpus": corpus.checksum, "analyser": lucene.NAME, "k1": K1, "b": B}


def _save(index: _Index, corpus: Corpus, folder: Path) -> None:
    try:
        with draft_folder(folder) as draft:
            for name in _ARRAYS:
                np.save(draft / f"{name}.csc.index.npy", getattr(index, name))
            (draft / _VOCABULARY).write_text(json.dumps(index.vocabulary), encoding="utf-8")
            np.save(draft / _OFFSETS, corpus.offsets)
            (draft / _MANIFEST).write_text(json.dumps({**_identity(corpus), "passages": len(corpus)}), encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"index folder {folder} can't be written ({error}); give another with index=...") from error


def _load(corpus: Corpus, folder: Path) -> _Index:
    try:
        stored = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        vocabulary = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
        index = _Index(vocabulary, *(np.load(folder / f"{name}.csc.index.npy", mmap_mode="r") for name in _ARRAYS))
    except (OSError, EOFError, ValueError, TypeError, KeyError) as error:
        raise CorpusError(f"BM25 index {folder} is broken ({error}); delete the folder to build it again") from error
    _compare(stored, corpus, folder)
    if len({int(index.indptr[-1]), len(index.data), len(index.indices)}) > 1 or len(offsets) != stored["passages"] + 1:
        raise CorpusError(f"BM25 index {folder} is broken (its arrays do not fit); delete the folder to build it again")
    corpus.offsets = offsets
    return index


def _compare(stored: Any, corpus: Corpus, folder: Path) -> None:
    expected = _identity(corpus)
    if not isinstance(stored, dict) or not {*expected, "passages"} <= set(stored):
        raise CorpusError(f"BM25 index {folder} is broken (its manifest lacks fields); delete the folder")
    for name, value in expected.items():
        if stored[name] != value:
            raise CorpusError(
                f"BM25 index {folder} does not belong to corpus {corpus.path}: its {name} is {stored[name]!r}, "
                f"expected {value!r}; delete the folder to build it again, or name another one with index=..."
            )

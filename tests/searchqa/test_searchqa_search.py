"""BM25 and its index on disk, text analysis, the corpus, dense search and the cache."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from alignopsd_trl.environments.searchqa import BM25Retriever, Corpus, CorpusError, open_local, open_retriever, suite
from alignopsd_trl.environments.searchqa.engine.bm25 import top
from alignopsd_trl.environments.searchqa.engine.retrieval import (
    CachedRetriever,
    Outcome,
    Passage,
    Retriever,
    SearchFailure,
)
from alignopsd_trl.environments.text.bm25 import quantised
from alignopsd_trl.environments.text.lucene import terms


def write(folder: Path, *contents: object) -> Path:
    rows = [{"id": str(i), "contents": text} for i, text in enumerate(contents)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Lidda's Twelve-Doors", ["lidda", "twelv", "door"]),
        ("3.14 and 1,000 at U.S.A.", ["3.14", "1,000", "u.s.a"]),
        ("relational possibly hopefulness university", ["relat", "possibl", "hope", "univers"]),
        ("café ÉTÉ İstor naïve’s", ["café", "été", "istor", "naïv"]),
        ("東京タワー ☕ ½ _ __a", ["東", "京", "タワー", "☕", "__a"]),
        ("\U0001f582 \u2766", ["\U0001f582", "\u2766"]),  # pictographs for Lucene, whatever Unicode is installed
        ("", []),
        ("a" * 600, ["a" * 255, "a" * 255, "a" * 90]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_scores_are_those_of_the_formula(corpus: Corpus, bm25: BM25Retriever) -> None:
    documents = [terms(row["contents"]) for row in corpus]
    lengths = quantised(np.array([len(document) for document in documents]))
    mean = sum(map(len, documents)) / len(documents)
    query = "which river river flows past the town of Lumloom"
    frequencies = Counter(term for document in documents for term in set(document))
    expected = {}
    for row, document in enumerate(documents):
        counts = Counter(document)
        parts = []
        for term in terms(query):
            if counts[term]:
                idf = math.log(1 + (len(documents) - frequencies[term] + 0.5) / (frequencies[term] + 0.5))
                parts.append(idf * counts[term] / (counts[term] + 0.9 * (0.6 + 0.4 * lengths[row] / mean)))
        if parts:
            expected[str(row)] = sum(parts)
    found = bm25.search([query], len(documents))[0]
    assert {passage.id: passage.score for passage in found} == pytest.approx(expected, rel=1e-6)


def test_ties_go_by_the_id_as_text() -> None:
    scores = np.ones(40, dtype=np.float32)
    scores[5] = 2.0
    assert top(np.arange(40), scores, 4) == [(5, 2.0), (0, 1.0), (1, 1.0), (10, 1.0)]
    assert top(np.array([7, 3]), np.array([1, 2], dtype=np.float32), 3) == [(3, 2.0), (7, 1.0)]


def test_few_hits_are_the_first_of_all_hits(corpus: Corpus, bm25: BM25Retriever) -> None:
    queries = ["capital of Marevia", "river town", "Lumloom Lumloom river", "in which year was lidda eskerry born"]
    for query in queries:
        everything = bm25.search([query], len(corpus))[0]
        for k in (1, 2, 3, 7, 50):
            assert bm25.search([query], k)[0] == everything[:k]


def test_the_saved_index_answers_as_the_one_in_memory(tmp_path: Path, corpus: Corpus, bm25: BM25Retriever) -> None:
    queries = ["capital of Marevia", "zzzz", "", "river", "In which year was the director of the film born?"]
    for _ in ("built", "loaded"):
        saved = BM25Retriever(Corpus(corpus.path), tmp_path / "index")
        assert saved.search(queries, 5) == bm25.search(queries, 5)
    assert isinstance(saved._index.data, np.memmap)


def test_an_index_stays_with_its_corpus(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, text in ((first, '"A"\none'), (second, '"B"\ntwo')):
        folder.mkdir()
        write(folder, text)
    open_local("bm25", first)
    with pytest.raises(CorpusError, match="does not belong to corpus .*corpus is"):
        open_local("bm25", second, index=first / "bm25")
    write(first, '"A"\none', '"C"\nthree')
    with pytest.raises(CorpusError, match="delete the folder to build it again"):
        open_local("bm25", first)


@pytest.mark.parametrize("name", ["manifest.json", "offsets.npy", "data.csc.index.npy", "vocab.index.json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "emptied"])
def test_a_damaged_index_is_refused(name: str, damage: str, tmp_path: Path) -> None:
    open_local("bm25", write(tmp_path, '"A"\none two three', '"B"\ntwo four'))
    file = tmp_path / "bm25" / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: 0 if damage == "emptied" else -3])
    with pytest.raises(CorpusError, match="broken.*delete"):
        open_local("bm25", tmp_path)


def _build(folder: Path) -> int:
    return len(open_local("bm25", folder).search(["two"], 3)[0])


def test_processes_may_build_the_same_index_at_once(tmp_path: Path) -> None:
    write(tmp_path, *[f'"T {i}"\none two {i}' for i in range(2000)])
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_build, [tmp_path] * 3) == [3, 3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bm25", "corpus.jsonl"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("no title here", "passage without title"),
        ("no title\nbut text", "passage without title"),
        ('"T"', "without text"),
        ('"T"\n ', "without text"),
        ("", "non-empty string"),
        (7, "non-empty string"),
    ],
)
def test_broken_passages(contents: object, message: str, tmp_path: Path) -> None:
    write(tmp_path, '"A"\none', contents)
    with pytest.raises(CorpusError, match=f"row 1: .*{message}"):
        suite(backend="bm25", corpus=tmp_path)
    assert not (tmp_path / "bm25").exists()


def test_broken_corpora(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        Corpus(tmp_path)
    with pytest.raises(CorpusError, match="empty"):
        Corpus(write(tmp_path))
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"A\\"\\nx"}\n{"id"')
    with pytest.raises(CorpusError, match="row 1: not a line of JSON"):
        open_retriever("bm25", tmp_path)


def test_a_corpus_without_a_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"contents": "\\"A\\"\\nx"}\n{"contents": "\\"B\\"\\ny", "more": 1}')
    corpus = Corpus(path)
    assert len(corpus) == 2 and corpus.passage(1) == Passage('"B"\ny')


def test_words_without_terms_only(tmp_path: Path) -> None:
    assert open_local("bm25", write(tmp_path, '"The"\nof the')).search(["the of"], 3) == [[]]


class Counting(Retriever):
    description: dict[str, object] = {}

    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        self.asked += queries
        return [SearchFailure("no") if query == "bad" else [Passage(f'"{query}"\n{k}')] for query in queries]


def test_the_cache_asks_once_and_forgets_failures_and_old_queries() -> None:
    inner = Counting()
    cache = CachedRetriever(inner, size=2)
    assert [len(cache.search(["a", "b", "a", "bad"], 3)), inner.asked] == [4, ["a", "b", "bad"]]
    cache.search(["a", "bad"], 3)
    assert inner.asked[3:] == ["bad"]
    cache.search(["c"], 3)
    cache.search(["b"], 3)
    assert inner.asked[4:] == ["c", "b"]
    cache.search(["b"], 5)
    assert inner.asked[6:] == ["b"]
    assert cache.metrics()["failed"] == 2

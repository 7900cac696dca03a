"""Dense search with FAISS and a small encoder made here; skipped where FAISS is not installed."""

from __future__ import annotations

import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from alignopsd_trl.environments.searchqa import CLOSED_WORLD, Corpus, CorpusError, open_local
from alignopsd_trl.environments.searchqa.engine.dense import DenseRetriever


def encode(texts: list[str]) -> np.ndarray:
    """Bags of hashed words, of unit length."""
    vectors = np.zeros((len(texts), 512), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().replace('"', " ").replace(".", " ").replace("?", " ").split():
            vectors[row, zlib.crc32(word.encode()) % 512] += 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_without_faiss_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"alignopsd-trl\[search\]"):
        DenseRetriever(Corpus(CLOSED_WORLD), tmp_path / "i.index", encode)


def test_a_named_index_that_is_missing_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist; leave it out to build one"):
        open_local("dense", CLOSED_WORLD, tmp_path / "i.index", encoder=encode)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    pytest.importorskip("faiss")
    return tmp_path / "dense.index"


def test_dense_search_finds_and_is_exact(index: Path) -> None:
    corpus = Corpus(CLOSED_WORLD)
    queries = ["the River Northin", "Mount Grey Hennick in Ostrevin", ""]
    vectors = encode([f"passage: {row['contents']}" for row in corpus])
    expected = encode([f"query: {query}" for query in queries]) @ vectors.T
    for _ in ("built", "loaded"):
        found = DenseRetriever(corpus, index, encode).search(queries, 3)
        assert [len(passages) for passages in found] == [3, 3, 3]
        for passages, scores in zip(found, expected, strict=True):
            assert [p.score for p in passages] == pytest.approx(sorted(scores, reverse=True)[:3], abs=1e-5)
    assert found[0][0].title == '"River Northin"' and found[1][0].title == '"Mount Grey Hennick"'


def test_an_index_of_another_corpus_encoder_or_prefix_is_refused(index: Path, tmp_path: Path) -> None:
    corpus = Corpus(CLOSED_WORLD)
    DenseRetriever(corpus, index, encode)
    lines = corpus.path.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "short.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    (tmp_path / "turned.jsonl").write_text("".join(lines[::-1]), encoding="utf-8")
    with pytest.raises(CorpusError, match="300 rows against 299 passages"):
        DenseRetriever(Corpus(tmp_path / "short.jsonl"), index, encode)
    with pytest.raises(CorpusError, match="does not belong"):
        DenseRetriever(Corpus(tmp_path / "turned.jsonl"), index, encode)
    with pytest.raises(CorpusError, match="width 512, the encoder gives 256"):
        DenseRetriever(corpus, index, lambda texts: encode(texts)[:, :256])
    with pytest.raises(CorpusError, match="prefixes"):
        DenseRetriever(corpus, index, encode, prefixes=("", "a b c d e f g h i j k l m n "))
    with pytest.raises(CorpusError, match="not a writable folder"):
        DenseRetriever(corpus, tmp_path / "no" / "dense.index", encode)
    index.write_bytes(b"part of an index")
    with pytest.raises(CorpusError, match="cat part_"):
        DenseRetriever(corpus, index, encode)


@pytest.mark.slow
def test_a_sentence_transformers_model_from_a_folder(index: Path, tmp_path: Path) -> None:
    models = pytest.importorskip("sentence_transformers.models")
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = sorted({word for row in Corpus(CLOSED_WORLD) for word in row["contents"].split()})
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        tmp_path / "bert"
    )
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words) + 2, **sizes)).save_pretrained(tmp_path / "bert")
    body = models.Transformer(str(tmp_path / "bert"))
    SentenceTransformer(modules=[body, models.Pooling(32)], device="cpu").save(str(tmp_path / "encoder"))
    shutil.copy(CLOSED_WORLD / "corpus.jsonl", tmp_path)
    retriever = open_local("dense", tmp_path, encoder=str(tmp_path / "encoder"))
    assert index.is_file()
    found = retriever.search(["the River Northin"], 3)[0]
    assert len(found) == 3 and -1.001 <= found[-1].score <= found[0].score <= 1.001
    assert retriever.description["encoder"] == str(tmp_path / "encoder")

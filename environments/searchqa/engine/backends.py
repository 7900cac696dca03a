"""Opens a local retrieval backend by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alignopsd_trl.environments.searchqa.engine.bm25 import FOLDER_NAME, BM25Retriever
from alignopsd_trl.environments.searchqa.engine.corpus import Corpus, CorpusError
from alignopsd_trl.environments.searchqa.engine.retrieval import Retriever

BACKENDS = ("bm25", "dense")


def open_local(
    backend: str,
    corpus: str | Path,
    index: str | Path | None = None,
    encoder: Any = "intfloat/e5-base-v2",
    device: str = "cpu",
    progress: bool = False,
) -> Retriever:
    """Opens the retriever over a corpus. Its index is saved next to the corpus unless ``index`` names another place.

    Raises:
        ValueError: if the backend is unknown; `CorpusError` on a broken corpus or index.
        ImportError: if the backend's libraries are missing.
    """
    passages = Corpus(corpus)
    if backend == "bm25":
        return BM25Retriever(passages, index or passages.path.parent / FOLDER_NAME, progress)
    if backend == "dense":
        from alignopsd_trl.environments.searchqa.engine.dense import FILE_NAME, DenseRetriever

        if index is not None and not Path(index).is_file():
            raise CorpusError(f"dense index {index} does not exist; leave it out to build one beside the corpus")
        where = index or passages.path.parent / FILE_NAME
        return DenseRetriever(passages, where, encoder, device, progress=progress)
    raise ValueError(f"retrieval backend {backend!r} is unknown; use one of {', '.join(BACKENDS)}")

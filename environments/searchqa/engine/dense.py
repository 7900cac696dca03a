"""Dense retrieval: an e5-style encoder (sentence-transformers) and a FAISS index whose rows are the corpus's rows.

Reads the published flat index of the 2018 Wikipedia corpus (join its parts first: ``cat part_* > e5_Flat.index``) and
builds one for a corpus of one's own. Needs the extra ``search``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from alignopsd_trl.environments.searchqa.engine.corpus import Corpus, CorpusError
from alignopsd_trl.environments.searchqa.engine.retrieval import LocalRetriever, Outcome

FILE_NAME = "dense.index"
LONGEST_TEXT = 256  # tokens
_SAME = 0.98  # cosine between a stored row and its passage encoded again; half precision and padding stay above it
_BATCH = 256

Encoder = Callable[[list[str]], np.ndarray]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("dense retrieval needs FAISS: pip install 'alignopsd-trl[search]'") from error
    return faiss


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """Loads an encoder by id or path as a function: texts -> (N, D) float32 of unit length, texts cut at 256 tokens."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError("dense retrieval needs sentence-transformers: pip install 'alignopsd-trl[search]'") from error
    model = SentenceTransformer(name, device=device)
    model.max_seq_length = LONGEST_TEXT

    def encode(texts: list[str]) -> np.ndarray:
        return model.encode(texts, batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False)

    return encode


class DenseRetriever(LocalRetriever):
    """Searches by exact or approximate inner products.

    Args:
        corpus: the passages, in the order of the index's rows.
        index: a FAISS file; built there first (flat) if it does not exist.
        encoder: sentence-transformers id or path, or a function from texts to (N, D) vectors of unit length.
        device: ``cpu``, or ``cuda`` for encoder and index (the index then needs a FAISS build with GPU support).
        prefixes: put before queries and passages. e5 models need their two; an encoder of another family its own.
        progress: shows a bar while an index is built.

    Raises:
        ImportError: without FAISS or sentence-transformers.
        CorpusError: if the index is unreadable or does not belong to this corpus and encoder.
    """

    def __init__(
        self,
        corpus: Corpus,
        index: str | Path,
        encoder: str | Encoder = "intfloat/e5-base-v2",
        device: str = "cpu",
        prefixes: tuple[str, str] = ("query: ", "passage: "),
        progress: bool = False,
    ):
        super().__init__()
        self.corpus, self.prefixes = corpus, prefixes
        faiss = _faiss()
        self._encode = encoder if callable(encoder) else load_encoder(encoder, device)
        if not Path(index).exists():
            _check_writable(Path(index))
            _write(faiss, self._build(faiss, progress), Path(index))
        self._index = _read(faiss, Path(index))
        self._compare(Path(index))
        if device.startswith("cuda"):
            self._index = _to_gpu(faiss, self._index)
        self.description = {"backend": "dense", "corpus": corpus.checksum[:16], "passages": len(corpus),
                            "encoder": encoder if isinstance(encoder, str) else repr(encoder),
                            "prefixes": list(prefixes)}  # fmt: skip

    def _searched(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """Returns ``k`` passages per query, or all of a smaller corpus."""
        scores, rows = self._index.search(self._vectors(self.prefixes[0], queries), min(k, len(self.corpus)))
        return [
            [self.corpus.passage(int(row), float(score)) for row, score in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows, scores, strict=True)
        ]

    def _vectors(self, prefix: str, texts: Sequence[str]) -> np.ndarray:
        return np.ascontiguousarray(self._encode([prefix + text for text in texts]), dtype=np.float32)

    def _build(self, faiss: Any, progress: bool) -> Any:
        index = None
        starts = range(0, len(self.corpus), _BATCH)
        for start in tqdm(starts, desc="dense index", disable=not progress):
            rows = range(start, min(start + _BATCH, len(self.corpus)))
            vectors = self._vectors(self.prefixes[1], [self.corpus.row(row)["contents"] for row in rows])
            index = faiss.IndexFlatIP(vectors.shape[1]) if index is None else index
            index.add(vectors)
        return index

    def _compare(self, path: Path) -> None:
        """Checks that the index fits the corpus by row count, width, and three rows that are encoded again: the
        published files have no checksum of their corpus."""
        if self._index.ntotal != len(self.corpus):
            raise CorpusError(
                f"dense index {path} does not belong to corpus {self.corpus.path}: {self._index.ntotal} rows against "
                f"{len(self.corpus)} passages; give the index that was built from this file"
            )
        sample = sorted({0, len(self.corpus) // 2, len(self.corpus) - 1})
        fresh = self._vectors(self.prefixes[1], [self.corpus.row(row)["contents"] for row in sample])
        if fresh.shape[1] != self._index.d:
            raise CorpusError(
                f"dense index {path} holds vectors of width {self._index.d}, the encoder gives {fresh.shape[1]}; give "
                "the encoder that the index was built with"
            )
        stored = np.stack([self._index.reconstruct(row) for row in sample])
        cosine = (stored * fresh).sum(1) / (np.linalg.norm(stored, axis=1) * np.linalg.norm(fresh, axis=1))
        if not (cosine > _SAME).all():
            raise CorpusError(
                f"dense index {path} does not belong to corpus {self.corpus.path} or to this encoder and its prefixes: "
                f"rows {sample} encoded again have cosine {cosine.round(3).tolist()} with the stored ones"
            )


def _check_writable(path: Path) -> None:
    """Checks that the index can be written, before hours of encoding."""
    if not os.access(path.parent, os.W_OK):
        raise CorpusError(f"dense index {path} can't be written: {path.parent} is not a writable folder")


def _write(faiss: Any, index: Any, path: Path) -> None:
    """Writes under another name and renames at the end, so that a reader never sees half an index."""
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        draft = os.path.join(folder, path.name)
        faiss.write_index(index, draft)
        os.replace(draft, path)


def _read(faiss: Any, path: Path) -> Any:
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    except RuntimeError as error:
        raise CorpusError(
            f"dense index {path} can't be read ({error}); if it came in parts, join them: cat part_* > {path.name}"
        ) from error


def _to_gpu(faiss: Any, index: Any) -> Any:
    if not hasattr(faiss, "index_cpu_to_all_gpus"):
        raise ImportError("this FAISS has no GPU support; use device='cpu' or install a GPU build of FAISS")
    options = faiss.GpuMultipleClonerOptions()
    options.useFloat16 = True
    options.shard = True
    return faiss.index_cpu_to_all_gpus(index, co=options)

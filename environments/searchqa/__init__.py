"""Search-QA: answer questions with the help of a search engine, in the setting of Search-R1.

Without options everything is embedded: 300 passages and 400 questions about an invented world, searched by BM25.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from environments.base import Suite
from environments.searchqa.averages import Averages, averages
from environments.searchqa.backends import BACKENDS, open_local
from environments.searchqa.batch import SearchQABatch, SearchQAFactory
from environments.searchqa.bm25 import BM25Retriever
from environments.searchqa.client import HttpRetriever
from environments.searchqa.corpus import Corpus, CorpusError
from environments.searchqa.data import CLOSED_WORLD, DATA_SOURCES, DataError, Questions
from environments.searchqa.episode import SearchQA
from environments.searchqa.prompt import SearchQAPrompt
from environments.searchqa.retrieval import Outcome, Passage, Retriever, RetrieverDown, SearchFailure

__all__ = [
    "Averages",
    "BM25Retriever",
    "Corpus",
    "CorpusError",
    "DATA_SOURCES",
    "DataError",
    "HttpRetriever",
    "Outcome",
    "Passage",
    "Questions",
    "Retriever",
    "RetrieverDown",
    "SearchFailure",
    "SearchQA",
    "SearchQABatch",
    "SearchQAFactory",
    "SearchQAPrompt",
    "averages",
    "open_local",
    "open_retriever",
    "suite",
]


if "SearchQA-v0" not in gymnasium.registry:
    gymnasium.register(id="SearchQA-v0", entry_point="environments.searchqa.gym:SearchQAGym")


def suite(
    data: str | Path | Mapping[str, str | Path] | None = None,
    backend: str | Retriever = "bm25",
    corpus: str | Path | None = None,
    retrieval: Mapping[str, Any] | None = None,
    top_k: int = 3,
    style: str = "plain",
    dialect: str = "agent_loop",
    max_turns: int = 4,
    history_length: int = 4,
    template: str | Path = "paper",
) -> Suite:
    """Search-QA with its questions and its search engine.

    Args:
        data: None for the closed world, else what `Questions` takes (folder, files by split, hub id).
        backend: ``bm25``, ``dense``, ``http``, or a `Retriever`.
        corpus: of a local backend; None for the closed world's.
        retrieval: options of the backend: ``index``, ``encoder``, ``device``, ``progress`` of a local one; ``urls``,
            ``dialect``, ``timeout``, ... of `HttpRetriever`.
        top_k, style, dialect, max_turns, history_length: of `SearchQA`.
        template: of `SearchQAPrompt`.

    Raises:
        ValueError: on options that do not fit each other; `CorpusError`, `DataError` on broken files.
    """
    questions = Questions(data)
    if questions.name != "closed_world" and backend in BACKENDS and corpus is None:
        raise ValueError(f"data={questions.name!r} needs a corpus of its own: corpus=..., or backend='http'")
    retriever = backend if isinstance(backend, Retriever) else open_retriever(backend, corpus, **(retrieval or {}))
    options = {"top_k": top_k, "style": style, "dialect": dialect, "max_turns": max_turns,
               "history_length": history_length}  # fmt: skip
    prompt = SearchQAPrompt(template)
    factory = SearchQAFactory(retriever, **options, prompt=prompt)
    return Suite(
        name="searchqa",
        factory=factory,
        tasks=questions.dataset,
        panel=questions.panel,
        categories=DATA_SOURCES,
        description={
            "data": questions.name,
            "retrieval": retriever.description,
            "prompt": prompt.name,
            **options,
        },
    )


def open_retriever(backend: str, corpus: str | Path | None = None, **options: Any) -> Retriever:
    """A retrieval backend by name.

    Raises:
        ValueError: if the backend is unknown or lacks what it needs.
    """
    if backend == "http":
        if corpus is not None:
            raise ValueError("backend='http' takes no corpus; the service holds it")
        if not options.get("urls"):
            raise ValueError("backend='http' needs retrieval={'urls': 'http://127.0.0.1:8000/retrieve', ...}")
        return HttpRetriever(**options)
    if backend == "bm25" and corpus is None:
        return BM25Retriever(Corpus(CLOSED_WORLD), **options)
    return open_local(backend, CLOSED_WORLD if corpus is None else corpus, **options)

"""Search-QA: questions that are answered with the help of a search engine, in the setting of Search-R1.

Without options everything is embedded: 300 passages and 400 questions about an invented world, searched by BM25.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium

from alignopsd_trl.environments.base import DataError, Suite
from alignopsd_trl.environments.panel import SplitTasks
from alignopsd_trl.environments.searchqa.engine.averages import Averages, averages
from alignopsd_trl.environments.searchqa.engine.backends import BACKENDS, open_local
from alignopsd_trl.environments.searchqa.engine.bm25 import BM25Retriever
from alignopsd_trl.environments.searchqa.engine.client import HttpRetriever
from alignopsd_trl.environments.searchqa.engine.corpus import Corpus, CorpusError
from alignopsd_trl.environments.searchqa.engine.retrieval import (
    Outcome,
    Passage,
    Retriever,
    RetrieverDown,
    SearchFailure,
)
from alignopsd_trl.environments.searchqa.environment import SearchQA, SearchQABatch, SearchQAFactory
from alignopsd_trl.environments.searchqa.options import SearchQAOptions
from alignopsd_trl.environments.searchqa.prompt import SearchQAPrompt, prompt_of
from alignopsd_trl.environments.searchqa.tasks import CLOSED_WORLD, DATA_SOURCES, Questions

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
    "SearchQAOptions",
    "SearchQAPrompt",
    "averages",
    "open_local",
    "open_retriever",
    "suite",
]


if "SearchQA-v0" not in gymnasium.registry:
    gymnasium.register(id="SearchQA-v0", entry_point="alignopsd_trl.environments.gym:SearchQAGym")


def suite(**options: Any) -> Suite:
    """Makes Search-QA with its questions and its search engine. Panels: ``train``, ``test``, or one data source as in
    ``test/hotpotqa``.

    Args:
        options: see `SearchQAOptions`.

    Raises:
        ValueError: on an unknown option, a value that it can't have, or options that do not fit each other;
            `CorpusError`, `DataError` on broken files.
    """
    chosen = SearchQAOptions.of(options)
    questions, backend = Questions(chosen.data), chosen.backend
    if questions.name != "closed_world" and backend in BACKENDS and chosen.corpus is None:
        raise ValueError(f"data={questions.name!r} needs a corpus of its own: corpus=..., or backend='http'")
    if isinstance(backend, Retriever):
        retriever = backend
    else:
        retriever = open_retriever(backend, chosen.corpus, **(chosen.retrieval or {}))
    return suite_of("searchqa", questions, chosen, retriever, data=questions.name)


def suite_of(
    name: str,
    tasks: Questions | SplitTasks,
    chosen: SearchQAOptions,
    retriever: Retriever,
    kind: type[SearchQA] = SearchQA,
    categories: tuple[str, ...] = DATA_SOURCES,
    **described: Any,
) -> Suite:
    """Makes the suite of some tasks; ``described`` begins its description."""
    episode, prompt = chosen.described(), prompt_of(chosen.template)
    described |= {"retrieval": retriever.description, "prompt": f"{prompt.name}-{prompt.checksum}", **episode}
    factory = SearchQAFactory(retriever, kind=kind, **episode, template=chosen.template)
    return Suite(name, factory, tasks.dataset, tasks.panel, categories, described)


def open_retriever(backend: str, corpus: str | Path | None = None, **options: Any) -> Retriever:
    """Opens a retrieval backend by name.

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

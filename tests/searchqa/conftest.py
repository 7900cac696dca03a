"""A small corpus and servers on the loopback address."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from searchqa_helpers import FIXTURES, ScriptedServer

from alignopsd_trl.environments.searchqa import CLOSED_WORLD, BM25Retriever, Corpus


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The corpus that the recorded exchanges were made with."""
    return Corpus(FIXTURES if (FIXTURES / "corpus.jsonl").is_file() else CLOSED_WORLD)


@pytest.fixture(scope="session")
def bm25(corpus: Corpus) -> BM25Retriever:
    return BM25Retriever(corpus)


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    running: list[ScriptedServer] = []

    def start(*behaviours: Callable[..., None], port: int = 0) -> ScriptedServer:
        running.append(ScriptedServer(*behaviours, port=port))
        return running[-1]

    yield start
    for server in running:
        server.stop()

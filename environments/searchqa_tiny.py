"""Search-QA for a policy of a few million parameters: the closed world, short prompts, one snippet per search.

Questions, search engine, actions and rewards are Search-QA's own; passages are found by their whole text and shown by
their first sentences, which in the closed world hold the facts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignopsd_trl.environments import searchqa
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.searchqa.engine.retrieval import Outcome, Passage, Retriever, SearchFailure

OPTIONS: dict[str, Any] = {"template": "tiny", "top_k": 1, "max_turns": 4, "history_length": 3}
SENTENCES = 3  # of a passage that are shown


class Snippets(Retriever):
    """Returns the first sentences of another retriever's passages."""

    def __init__(self, inner: Retriever, sentences: int = SENTENCES):
        self.inner, self.sentences = inner, sentences
        self.description = {**inner.description, "sentences": sentences}

    def search(self, queries: Sequence[str], k: int) -> list[Outcome]:
        return [
            found if isinstance(found, SearchFailure) else [self._cut(passage) for passage in found]
            for found in self.inner.search(queries, k)
        ]

    def metrics(self) -> dict[str, float]:
        return self.inner.metrics()

    def close(self) -> None:
        self.inner.close()

    def _cut(self, passage: Passage) -> Passage:
        sentences = re.split(r"(?<=\.) ", passage.text)
        return replace(passage, contents=f"{passage.title}\n{' '.join(sentences[: self.sentences])}")


def suite(data: str | Path | None = None, **options: Any) -> Suite:
    """Makes Search-QA's suite with `OPTIONS` as defaults.

    Args:
        data: folder of a closed world; None for the embedded one.
        options: of `alignopsd_trl.environments.searchqa.suite`, save the corpus, which is the folder's.

    Raises:
        ValueError: on options of the search engine, and as `alignopsd_trl.environments.searchqa.suite`.
    """
    if taken := sorted({"backend", "corpus", "retrieval"} & options.keys()):
        raise ValueError(f"searchqa_tiny searches its own world; leave {taken[0]} out, or use the environment searchqa")
    retriever = Snippets(searchqa.open_retriever("bm25", data and Path(data) / "corpus.jsonl"))
    return replace(searchqa.suite(data=data, backend=retriever, **OPTIONS | options), skill_bank="searchqa")

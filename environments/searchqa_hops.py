"""Long episodes of Search-QA: questions of three and four hops over a small world, each with one trap.

Search engine, actions and rewards are Search-QA's own; see `alignopsd_trl.environments.searchqa.hops` for the
questions. Short prompts, as in `alignopsd_trl.environments.searchqa_tiny`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.searchqa import suite_of
from alignopsd_trl.environments.searchqa.engine.bm25 import BM25Retriever
from alignopsd_trl.environments.searchqa.engine.corpus import Corpus
from alignopsd_trl.environments.searchqa.hops import FILES, KINDS, HopQA, HopTasks
from alignopsd_trl.environments.searchqa.options import SearchQAOptions

OPTIONS: dict[str, Any] = {"template": "tiny", "top_k": 1, "max_turns": 8, "history_length": 7}


def suite(data: str | Path | None = None, **options: Any) -> Suite:
    """Makes Search-QA with the questions of several hops.

    Args:
        data: folder with ``corpus.jsonl``, ``train.jsonl`` and ``test.jsonl`` as the embedded ones are; None for those.
        options: of an episode of `alignopsd_trl.environments.searchqa`, with `OPTIONS` as defaults.

    Raises:
        ValueError: on options of the search engine, and on those that are unknown.
    """
    if taken := sorted({"backend", "corpus", "retrieval"} & options.keys()):
        raise ValueError(f"searchqa_hops searches its own world; leave {taken[0]} out, or use the environment searchqa")
    chosen = SearchQAOptions.of(OPTIONS | options)
    folder, name = Path(data or FILES), "searchqa_hops"
    described = {"environment": name, "data": "embedded" if data is None else str(data)}
    tasks, retriever = HopTasks(folder), BM25Retriever(Corpus(folder))
    made = suite_of(name, tasks, chosen, retriever, HopQA, KINDS, **described)
    return replace(made, skill_bank=name)

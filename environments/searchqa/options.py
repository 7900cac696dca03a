"""Options of Search-QA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.options import Options, option
from alignopsd_trl.environments.searchqa.engine.actions import PROJECTIONS
from alignopsd_trl.environments.searchqa.engine.observations import STYLES
from alignopsd_trl.environments.searchqa.engine.retrieval import Retriever


@dataclass(frozen=True)
class SearchQAOptions(Options):
    """Options of `alignopsd_trl.environments.searchqa.suite`, explained by the ``help`` of each field."""

    data: str | Path | Mapping[str, str | Path] | None = option(
        None,
        "None for the closed world, else what `Questions` takes (folder, files by split, hub id).",
        described=False,
    )
    backend: str | Retriever = option("bm25", "'bm25', 'dense', 'http', or a `Retriever`.", described=False)
    corpus: str | Path | None = option(None, "Of a local backend; None for the closed world's.", described=False)
    retrieval: Mapping[str, Any] | None = option(
        None,
        "Options of the backend: index, encoder, device, progress of a local one; urls, dialect, timeout, ... of "
        "`HttpRetriever`.",
        described=False,
    )
    top_k: int = option(3, "Passages that a search shows.", least=1)
    style: str = option("plain", "'plain' (Search-R1) or 'json' (released agent-loop code).", choices=STYLES)
    projection: str = option(
        "agent_loop",
        "Rule from response to action. 'search_r1' also answers a response without an action by a sentence that "
        "corrects it; 'agent_loop' shows nothing.",
        choices=tuple(PROJECTIONS),
    )
    max_turns: int = option(
        4, "Turns after which the caller ends an episode; the last one does not search any more.", least=1
    )
    history_length: int = option(4, "Turns that the prompt shows.", least=1)
    template: str | Path = option("paper", "Of the prompt: 'paper', 'tiny' or a jinja file.", described=False)

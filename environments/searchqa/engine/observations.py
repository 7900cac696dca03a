"""Shows the result of a search: ``plain`` (Search-R1) or ``json`` (the agent loop's released code)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from alignopsd_trl.environments.searchqa.engine.retrieval import Outcome, Passage, SearchFailure

STYLES = ("plain", "json")
FAILED_SEARCH = "The search failed: the retrieval service did not answer."
CORRECTION = (
    "\nThat response held no action. To look something up, write the query between <search> and </search>; to finish, "
    "write the answer between <answer> and </answer>. Please try once more.\n"
)

_PLAIN_LINE = re.compile(r'^Doc \d+\(Title: "(.*?)"\) (.*)$', re.MULTILINE)
_JSON_ENTRY = re.compile(r'^Doc \d+: "(.*?)"\n(.*)$', re.MULTILINE)
_WRAPPED = re.compile(r"<information>(.*)</information>", re.DOTALL)


def show(outcome: Outcome, style: str) -> str:
    """Returns the observation of one search: the passages, or a sentence that says that the search failed.

    Raises:
        ValueError: if the style is unknown.
    """
    if style not in STYLES:
        raise ValueError(f"observation style {style!r} is unknown; use one of {', '.join(STYLES)}")
    text = FAILED_SEARCH if isinstance(outcome, SearchFailure) else _RENDER[style](outcome)
    return f"<information>{json.dumps({'result': text})}</information>" if style == "json" else _wrap(text)


def read_titles(observation: str) -> dict[str, str]:
    """Parses an observation of either style into title -> text, for the scripted player."""
    match = _WRAPPED.search(observation)
    if not match:
        return {}
    if match[1].startswith('{"result"'):
        return dict(_JSON_ENTRY.findall(json.loads(match[1])["result"]))
    return dict(_PLAIN_LINE.findall(match[1]))


def _wrap(text: str) -> str:
    return f"<information>{text.strip()}</information>"


def _plain(passages: Sequence[Passage]) -> str:
    return "".join(f"Doc {i}(Title: {p.title}) {p.text}\n" for i, p in enumerate(passages, 1))


def _json(passages: Sequence[Passage]) -> str:
    return "".join(f"Doc {i}: {p.contents}\n" for i, p in enumerate(passages, 1))


_RENDER = {"plain": _plain, "json": _json}

"""Shows the result of a search: ``plain`` (Search-R1) or ``json`` (the agent loop's released code)."""

from __future__ import annotations

import json
import re

from alignopsd_trl.environments.searchqa.engine.retrieval import Outcome, SearchFailure

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

    Args:
        style: one of `STYLES`.
    """
    if isinstance(outcome, SearchFailure):
        text = FAILED_SEARCH
    elif style == "json":
        text = "".join(f"Doc {number}: {one.contents}\n" for number, one in enumerate(outcome, 1))
    else:
        text = "".join(f"Doc {number}(Title: {one.title}) {one.text}\n" for number, one in enumerate(outcome, 1))
    return f"<information>{json.dumps({'result': text}) if style == 'json' else text.strip()}</information>"


def read_titles(observation: str) -> dict[str, str]:
    """Parses an observation of either style into title -> text, for the scripted player."""
    match = _WRAPPED.search(observation)
    if not match:
        return {}
    if match[1].startswith('{"result"'):
        return dict(_JSON_ENTRY.findall(json.loads(match[1])["result"]))
    return dict(_PLAIN_LINE.findall(match[1]))

"""Hops: questions over several passages, each with one trap.

The world has short passages, and entities of different kinds may share a name. A
question follows facts from entity to entity. Its kind is the mistake that it invites:

* ``early``: answering with a name on the way;
* ``relation``: taking the wrong one of two facts in a passage (composer for director);
* ``namesake``: taking a fact from a passage on another entity of the same name;
* ``failed``: repeating a query that found something else, and giving up.

The kind is the task's key, so that a skill bank may have skills by kind; the player does not see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.base import Opening, Step
from alignopsd_trl.environments.panel import SplitTasks
from alignopsd_trl.environments.searchqa.engine.retrieval import Outcome
from alignopsd_trl.environments.searchqa.environment import SearchQA

KINDS = ("early", "relation", "namesake", "failed")
FILES = Path(__file__).parent / "data" / "hops"
FACTS: dict[str, dict[str, str]] = {
    "country": {"capital": "town", "currency": "currency"},
    "mountain": {"country": "country", "height": "number"},
    "river": {"mountain": "mountain", "length": "number"},
    "town": {"country": "country", "river": "river"},
    "person": {"birthplace": "town", "residence": "town"},
    "film": {"director": "person", "composer": "person"},
    "novel": {"author": "person", "illustrator": "person"},
    "firm": {"town": "town", "product": "goods"},
    "bridge": {"town": "town", "length": "number"},
    "festival": {"town": "town", "month": "month"},
}
"""kind -> fact -> type of its value, a kind or a word"""


class HopTasks(SplitTasks):
    """The questions of a folder, with ``task_id, category, question, golden_answers``. Kinds take turns.

    Args:
        folder: with ``train.jsonl`` and ``test.jsonl``.
    """

    environment = "searchqa_hops"

    def __init__(self, folder: Path):
        self._folder = folder

    def _rows(self, split: str) -> Sequence[dict[str, Any]]:
        return _read(self._folder / f"{split}.jsonl")


class HopQA(SearchQA):
    """Search-QA whose episodes know the kind of their question. A passage that states the fact that is looked for next
    is a milestone, and so is the right answer."""

    def reset(
        self,
        question: str,
        golden_answers: str | Sequence[str],
        data_source: str | None = None,
        category: str | None = None,
        **_: Any,
    ) -> Opening:
        opening = super().reset(question, golden_answers, category=category)
        facts, self._kind, self._name = asked(question)
        self._facts_left = list(facts)
        return replace(opening, task_key=category or None)

    def complete(self, outcome: Outcome | None) -> Step:
        step, reached = super().complete(outcome), None
        for passage in outcome if isinstance(outcome, list) else []:
            reached = self._found(passage.contents.partition("\n")[2]) or reached
        return replace(step, milestone="right answer" if step.won else reached)

    def _found(self, text: str) -> str | None:
        """Returns the name of the fact that is looked for now if the text states it, and goes on to the next one."""
        if not self._facts_left or not text.startswith(f"{self._name} is a {self._kind} "):
            return None
        fact = self._facts_left[0]
        value = re.search(rf"\b{fact} (?:of )?(\w+)", text)
        if value is None:
            return None
        name = f"{fact} of the {self._kind} {self._name}"
        self._kind, self._name = FACTS.get(self._kind, {}).get(fact, ""), value[1]
        del self._facts_left[0]
        return name


def asked(question: str) -> tuple[tuple[str, ...], str, str]:
    """Returns the facts of a question in the order in which they are found, and kind and name of what they start from;
    nothing of a question of another form."""
    *facts, start = re.findall(r"the (\w+)(?: of|(?= \w+[?.]?$))", question) or [""]
    name = re.search(r"(\w+)[?.]?$", question)
    return tuple(reversed(facts)), start, name[1] if name else ""


def kind_of(text: str) -> str:
    """Of what a passage is about."""
    return text.partition(" is a ")[2].split()[0]


def stated(text: str) -> dict[str, str]:
    """The facts of a passage."""
    return {fact: re.findall(rf"\b{fact} (?:of )?(\w+)", text)[0] for fact in FACTS[kind_of(text)]}


@cache
def _read(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())

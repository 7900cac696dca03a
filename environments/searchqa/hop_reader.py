"""A reader of questions of several hops, with a habit for each kind of trap, and what it says in a few words.

`play` is a player for `alignopsd demonstrate searchqa_hops`. Without a skill it gives in to its habits; under one it
is careful.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.environments.base import View
from alignopsd_trl.environments.searchqa.engine.actions import ANSWER, SEARCH, Action, read_action
from alignopsd_trl.environments.searchqa.engine.observations import read_titles
from alignopsd_trl.environments.searchqa.hops import FACTS, KINDS, asked, kind_of, stated

HABITS = {
    "early": {"stop": 0.4},
    "relation": {"other": 0.4},
    "namesake": {"take": 0.55},
    "failed": {"repeat": 0.75, "give up": 0.6},
}
"""How often a reader without the fitting skill gives in, at each decision that a habit has a say in."""
HEEDED = 0.02  # of these, what is left under the fitting skill
LONG = 4  # facts of a question that tempts to stop early


@dataclass(frozen=True)
class HopState:
    """What a reader knows on a turn: the question's facts in the order in which they are found, the names that it went
    through with the kind that each should be of, the last query and how often it was sent, and what it found."""

    facts: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    query: str
    sent: int
    passage: str

    @classmethod
    def read(cls, view: View) -> HopState:
        facts, start, name = asked(view.task_text)
        queries = [read_action(record.action).text for record in view.history]
        names = [name]
        for query in queries:
            if query.split()[:1] not in ([], [names[-1]]):
                names.append(query.split()[0])
        kinds = [start]
        for fact in facts[: len(names) - 1]:
            kinds.append(FACTS.get(kinds[-1], {}).get(fact, ""))
        passages = list(read_titles(view.history[-1].result).values()) if view.history else []
        query = queries[-1] if queries else ""
        return cls(facts, tuple(names), tuple(kinds), query, queries.count(query), passages[0] if passages else "")

    @property
    def wanted(self) -> str:
        """The fact that is looked for now; the last one, if the reader has lost its way."""
        return self.facts[min(len(self.names), len(self.facts)) - 1]

    @property
    def stated(self) -> dict[str, str]:
        return stated(self.passage) if self.passage else {}

    @property
    def right(self) -> bool:
        """The passage is on the name that was searched for, and on a thing of the kind that it should be of."""
        return self.passage.startswith(f"{self.names[-1]} is a {self.kinds[-1]} ")

    @property
    def alike(self) -> list[tuple[str, str]]:
        """Facts of the passage of the type that is looked for, with their values, the one that is asked for first."""
        facts, of = self.stated, FACTS.get(self.kinds[-1], {}).get(self.wanted)
        here = FACTS[kind_of(self.passage)] if self.passage else {}
        names = sorted((fact for fact in facts if here[fact] == of), key=lambda fact: fact != self.wanted)
        return [(fact, facts[fact]) for fact in names]


class TrapReader:
    """Decides from one situation at a time; keeps nothing between turns.

    Args:
        heeds (`Sequence[str]`): the kinds of trap that its skill warns of.
        draw (`random.Random`): of habits and words.
    """

    def __init__(self, heeds: Sequence[str], draw: random.Random):
        self.heeded, self.draw = frozenset(heeds), draw

    def _gives_in(self, kind: str, habit: str) -> bool:
        return self.draw.random() < HABITS[kind][habit] * (HEEDED if kind in self.heeded else 1.0)

    def decide(self, now: HopState) -> tuple[str, Action]:
        """Returns a decision in words, and its action."""
        if not now.query:
            return _search(now.kinds[-1], now.names[-1])
        if now.right:
            other = len(now.alike) > 1 and self._gives_in("relation", "other")
            return self._goes_on(now, *now.alike[1 if other else 0])
        if now.alike and self._gives_in("namesake", "take"):
            return self._goes_on(now, *now.alike[0])
        if not now.alike:
            if now.sent > 1 and self._gives_in("failed", "give up"):
                return "give up", Action(ANSWER, "unknown")
            if self._gives_in("failed", "repeat"):
                return "the same again", Action(SEARCH, now.query)
        return f"search the {now.kinds[-1]}", Action(SEARCH, f"{now.names[-1]} {now.kinds[-1]}")

    def _goes_on(self, now: HopState, fact: str, value: str) -> tuple[str, Action]:
        read, last = len(now.names), len(now.names) >= len(now.facts)
        stops = len(now.facts) >= LONG and 2 <= read and not last and self._gives_in("early", "stop")
        return (f"answer {fact} {value}", Action(ANSWER, value)) if last or stops else _search(fact, value)


def _search(fact: str, name: str) -> tuple[str, Action]:
    return f"search {fact} {name}", Action(SEARCH, name)


def play(view: View, environment: Any, skill: str, draw: random.Random) -> str:
    """Returns the response to one prompt. Its thought copies what decides from the question and the passage: what was
    found, of which kind, and what is left to find, or which kind was found instead."""
    now = HopState.read(view)
    decision, action = TrapReader(KINDS if skill else (), draw).decide(now)
    return f"<think>{_thought(now, decision)}</think>\n{action}"


def _thought(now: HopState, decision: str) -> str:
    if not now.query:
        return f"{now.kinds[-1]} {now.names[-1]}; left {', '.join(now.facts)}"
    seen = kind_of(now.passage) if now.passage else "nothing"
    verb, fact, *value = decision.split()
    if value and verb in ("search", "answer") and fact != "the":
        left = ", ".join(now.facts[len(now.names) :]) or "none"
        return f"{seen}, {fact} {value[0]}, {FACTS[seen][fact]}; left {left}"
    return f"{seen}, not {now.kinds[-1]}{'' if fact == 'the' and verb == 'search' else f'; {decision}'}"

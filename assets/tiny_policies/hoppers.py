"""Readers of questions of several hops, whose thinking states their situation, and who read their skill.

A thought says in varied words what was asked, what the last passage says, what is known and what is missing, all of
it true, and ends in what the reader makes of it: ``it says river Drodale : mountain Ilsk , length 432 ; known river
Drodale ; missing mountain , height ; so search mountain Ilsk``. A reader has four habits, one a kind of trap
(`alignopsd_trl.environments.searchqa.hops`), and gives in to each about every second time. A skill of a kind keeps it
from that habit and from no other.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments import searchqa_hops
from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.environments.searchqa.engine.actions import ANSWER, SEARCH, Action, read_action
from alignopsd_trl.environments.searchqa.engine.observations import read_titles
from alignopsd_trl.environments.searchqa.hops import KINDS, SPLITS
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies.demonstrations import Demonstration, every_task
from assets.tiny_policies.heeding import heeding
from assets.worlds.hops import FACTS, generate, kind_of, stated

Episodes = Callable[[Suite, int, int], Iterator[tuple[TextEnvironment, Mapping[str, Any]]]]
"""(suite, passes, seed) -> what is played, in order."""

HABITS = {
    "early": {"stop": 0.4},
    "relation": {"other": 0.4},
    "namesake": {"take": 0.55},
    "failed": {"repeat": 0.75, "give up": 0.6},
}
"""How often a reader without the fitting skill gives in, at each decision that a habit has a say in."""
HEEDED = 0.02  # of these, what is left under the fitting skill
LONG = 4  # facts of a question that tempts to stop early
WORLDS = 6  # a pass
FIRST_SEED, SEED_STEP = 1000, 1000  # of the worlds, for seed 0 and from seed to seed; the embedded one has 1
EMBEDDED = 6  # episodes on each training question of the embedded world, a pass
WORDINGS = {
    "asked": ("asked", "wanted is", "the question is"),
    "says": ("this is", "it says", "found"),
    "known": ("known", "so far", "on the way"),
    "missing": ("missing", "still open", "to find"),
}
_SAID = [words for said in WORDINGS.values() for words in said]
PHRASES = (
    *(f"Step {number}:<search>" for number in range(4, 8)),
    '") ',
    " of the ",
    " in the ",
    " with the ",
    " with a length of ",
    " with a height of ",
    " is a ",
    " ; so ",
    " ; ",
    " , ",
    " : ",
    "the same again",
    "give up",
    *(f"{words} " for words in _SAID if " " in words),
)
"""What is one token, so that a thought takes some thirty and a passage some fifteen."""


@dataclass(frozen=True)
class Situation:
    """What a reader knows on a turn: the question's facts in the order in which they are found, the names that it went
    through with the kind that each should be of, the last query and how often it was sent, and what it found."""

    facts: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    query: str
    sent: int
    passage: str

    @classmethod
    def read(cls, view: View) -> Situation:
        *facts, start = re.findall(r"the (\w+)(?: of|(?= \w+[?.]?$))", view.task_text)
        name = re.search(r"(\w+)[?.]?$", view.task_text)[1]
        facts.reverse()
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
        return cls(
            tuple(facts), tuple(names), tuple(kinds), query, queries.count(query), passages[0] if passages else ""
        )

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
        found, of = self.stated, FACTS.get(self.kinds[-1], {}).get(self.wanted)
        here = FACTS[kind_of(self.passage)] if self.passage else {}
        names = sorted((fact for fact in found if here[fact] == of), key=lambda fact: fact != self.wanted)
        return [(fact, found[fact]) for fact in names]


class HopReader:
    """Answers one view at a time; keeps nothing between turns.

    Args:
        heeds (`Sequence[str]`): the kinds of trap that its skill warns of.
        draw (`random.Random`): of habits and words.
    """

    def __init__(self, heeds: Sequence[str], draw: random.Random):
        self.heeded, self.draw = frozenset(heeds), draw

    def answer(self, view: View) -> str:
        now = Situation.read(view)
        decision, action = self._decide(now)
        return f"<think>{' ; '.join(self._facts(now))} ; so {decision}</think>\n{action}"

    def _gives_in(self, kind: str, habit: str) -> bool:
        return self.draw.random() < HABITS[kind][habit] * (HEEDED if kind in self.heeded else 1.0)

    def _decide(self, now: Situation) -> tuple[str, Action]:
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

    def _goes_on(self, now: Situation, fact: str, value: str) -> tuple[str, Action]:
        read, last = len(now.names), len(now.names) >= len(now.facts)
        stops = len(now.facts) >= LONG and 2 <= read and not last and self._gives_in("early", "stop")
        return (f"answer {fact} {value}", Action(ANSWER, value)) if last or stops else _search(fact, value)

    def _facts(self, now: Situation) -> list[str]:
        known = [f"{kind} {name}" for kind, name in zip(now.kinds, now.names, strict=False)]
        missing = now.facts[len(now.names) - 1 :] or now.facts[-1:]
        said = [
            f"{self._word('known')} {' , '.join(known)}",
            f"{self._word('missing')} {' , '.join(missing)}",
        ]
        if not now.query:
            return [f"{self._word('asked')} {now.facts[-1]}", *said]
        found = " , ".join(f"{fact} {value}" for fact, value in now.stated.items())
        head = f"{kind_of(now.passage)} {now.passage.split()[0]}" if now.passage else "nothing"
        turn = self.draw.randrange(2)
        return [f"{self._word('says')} {head} : {found or 'nothing'}", *said[turn:], *said[:turn]]

    def _word(self, slot: str) -> str:
        return self.draw.choice(WORDINGS[slot])


def _search(fact: str, name: str) -> tuple[str, Action]:
    return f"search {fact} {name}", Action(SEARCH, name)


def elsewhere(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """All questions of `WORLDS` invented worlds a pass, a world at a time; every seed has worlds of its own. The tasks
    of the suite are not among them."""
    draw = random.Random(seed)
    for world in range(passes * WORLDS):
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), FIRST_SEED + SEED_STEP * seed + world)
            invented = searchqa_hops.suite(folder)
            rows = [row for split in SPLITS for row in invented.panel(split).rows]
            yield from ((invented.factory(), row) for row in draw.sample(rows, len(rows)))


def at_home(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """The training questions of the embedded world, `EMBEDDED` times a pass."""
    return every_task(suite, passes * EMBEDDED, seed)


def demonstrations(
    episodes: Episodes, suite: Suite, bank: SkillBank, passes: int, seed: int
) -> Iterator[Demonstration]:
    """Every turn of the episodes, see `heeding`."""
    return heeding(episodes(suite, passes, seed), HopReader, KINDS, bank, random.Random(seed))

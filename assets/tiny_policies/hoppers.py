"""Readers of questions of several hops, whose thinking states their situation, and who read their skill.

A thought says in varied words what was asked, what the last passage says, what is known and what is missing, all of
it true, and ends in what the reader makes of it: ``it says river Drodale : mountain Ilsk , length 432 ; known river
Drodale ; missing mountain , height ; so search mountain Ilsk``. A reader has four habits, one a kind of trap
(`alignopsd_trl.environments.searchqa.hops`), and gives in to each about every second time. A skill of a kind keeps it
from that habit and from no other.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.environments import searchqa_hops
from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.environments.panel import SPLITS
from alignopsd_trl.environments.searchqa.hop_reader import HopState, TrapReader
from alignopsd_trl.environments.searchqa.hops import KINDS, kind_of
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies.demonstrations import Demonstration, every_task
from assets.tiny_policies.heeding import heeding
from assets.worlds.hops import generate

Episodes = Callable[[Suite, int, int], Iterator[tuple[TextEnvironment, Mapping[str, Any]]]]
"""(suite, passes, seed) -> what is played, in order."""

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


class HopReader(TrapReader):
    """Answers one view at a time; keeps nothing between turns.

    Args:
        heeds (`Sequence[str]`): the kinds of trap that its skill warns of.
        draw (`random.Random`): of habits and words.
    """

    def answer(self, view: View) -> str:
        now = HopState.read(view)
        decision, action = self.decide(now)
        return f"<think>{' ; '.join(self._facts(now))} ; so {decision}</think>\n{action}"

    def _facts(self, now: HopState) -> list[str]:
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

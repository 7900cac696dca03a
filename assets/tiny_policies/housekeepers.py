"""Housekeepers who fetch pairs: their thinking states their situation, and they read their skill.

A thought says in varied words what this place shows or what is carried, what is done, and what is asked or not yet
seen, all of it true, and ends in what the housekeeper makes of it: ``carried cup 2 , not clean ; asked two clean cup ;
done one on shelf 1 ; so clean it first``. A housekeeper has four habits, one a kind of trap
(`alignopsd_trl.environments.alfworld.pairs`), and gives in to each about every second time. A skill of a kind keeps
it from that habit and from no other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from alignopsd_trl.environments.alfworld.house import NOTHING, STATES, TOOLS, kind_of
from alignopsd_trl.environments.alfworld.pairs import KINDS, LOOKALIKES, PairGoal, PairTasks
from alignopsd_trl.environments.base import Suite, TextEnvironment, View
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies.demonstrations import Demonstration, episode
from assets.tiny_policies.heeding import NO_SKILL, heeding, under

HABITS = {
    "untreated": {"bring": 0.22, "put": 0.8},
    "lookalike": {"take": 0.4},
    "closed": {"leave": 0.7},
    "apart": {"bring": 0.7, "put": 0.9},
}
"""How often a housekeeper without the fitting skill gives in, at each decision that a habit has a say in."""
HEEDED = 0.02  # of these, what is left under the fitting skill
GAMES_SEED = 1000  # of the games that are shown, for seed 0; the embedded ones have 0
SLIPS = 0.06  # of the turns of `contrasts`, a command that nobody meant
WORDINGS = {
    "asked": ("asked", "wanted", "the task is"),
    "here": ("here", "this is", "in sight"),
    "carried": ("carried", "in hand", "I hold"),
    "done": ("done", "delivered", "placed"),
    "left": ("not seen", "unseen", "left"),
}
_SAID = [words for said in WORDINGS.values() for words in said]
PHRASES = (
    "\n> go to ",
    "\n> open ",
    "\n> take ",
    "\n> move ",
    "\n> clean ",
    "\n> heat ",
    "\n> cool ",
    "\nNow: ",
    "\nPlaces: ",
    "Task: put two ",
    "On the ",
    "In the ",
    "You open the ",
    "You pick up the ",
    "You move the ",
    " from the ",
    " using the ",
    ", you see ",
    " to the ",
    " is closed",
    "You are in the middle of a room.",
    " from ",
    " with ",
    " to ",
    " in ",
    " on ",
    ", a ",
    "go to ",
    "<action>go to ",
    "<action>open ",
    "<action>take ",
    "<action>move ",
    "<action>clean ",
    "<action>heat ",
    "<action>cool ",
    "</action>",
    "</think>",
    " ; so ",
    " ; ",
    " , ",
    " : ",
    "bring it to ",
    "go back for ",
    "put it down",
    "it first",
    *(f"{words} " for words in _SAID if " " in words),
)
"""What is one token, so that a thought takes some twenty."""


@dataclass(frozen=True)
class Situation:
    """What a housekeeper knows on a turn: the task, where it is and what it carries, the inside of all places that were
    looked into, those that were found closed, the states of things, and what was delivered where."""

    goal: PairGoal
    here: str
    carried: str
    places: tuple[str, ...]
    inside: Mapping[str, tuple[str, ...]]
    shut: tuple[str, ...]
    states: Mapping[str, str]
    delivered: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, view: View) -> Situation:
        goal, here, carried = PairGoal.read(view.task_text), "", ""
        inside: dict[str, list[str]] = {}
        shut, states, delivered = [], {}, []
        for record in view.history:
            if record.result.startswith(NOTHING):
                continue
            verb, rest = record.action.split(" ", 1)
            here = rest.removeprefix("to ") if verb == "go" else here
            if verb == "take":
                carried, place = rest.split(" from ")
                inside[place].remove(carried)
            elif verb == "move":
                inside.setdefault(here, []).append(carried)
                delivered += [(carried, here)] if kind_of(here) == goal.place else []
                carried = ""
            elif verb in TOOLS:
                states[carried] = STATES[verb]
            elif record.result.endswith("is closed."):
                shut.append(here)
            elif verb in ("go", "open"):
                inside[here] = re.findall(r"a (\w+ \d+)", record.result)
        there = [one.removeprefix("go to ") for one in view.admissible if one.startswith("go to ")]
        seen = {place: tuple(things) for place, things in inside.items()}
        return cls(goal, here, carried, tuple(there), seen, tuple(shut), states, tuple(delivered))

    @property
    def closed(self) -> bool:
        """This place is closed."""
        return self.here not in ("", *self.inside)

    @property
    def treated(self) -> bool:
        return not self.goal.state or self.states.get(self.carried) == self.goal.state

    @property
    def known(self) -> list[tuple[str, str]]:
        """Asked things that were seen and are not delivered, with their places; those in sight first."""
        found = [
            (thing, place)
            for place, things in self.inside.items()
            for thing in things
            if kind_of(thing) == self.goal.thing and (thing, place) not in self.delivered
        ]
        return sorted(found, key=lambda one: one[1] != self.here)

    @property
    def unseen(self) -> list[str]:
        """Places that were not looked into and may hold something, but this one; those found closed are the last."""
        out = {self.goal.place, *TOOLS.values()}
        new = [place for place in self.places if place not in self.inside and kind_of(place) not in out]
        return sorted(new, key=lambda place: place in self.shut)

    @property
    def ends(self) -> list[str]:
        """Places of the asked kind that one can go to or is at."""
        return [place for place in (*self.places, self.here) if kind_of(place) == self.goal.place]


class Housekeeper:
    """Answers one view at a time; keeps nothing between turns but ``tempted``: the kind of the habit that had a say in
    the last answer, if any.

    Args:
        heeds (`Sequence[str]`): the kinds of trap that its skill warns of.
        draw (`random.Random`): of habits, ways and words.
    """

    def __init__(self, heeds: Sequence[str], draw: random.Random):
        self.heeded, self.draw = frozenset(heeds), draw
        self.tempted: str = ""

    def answer(self, view: View) -> str:
        self.tempted = ""
        now = Situation.read(view)
        decision, action = self._with_it(now) if now.carried else self._searching(now)
        return f"<think>{' ; '.join(self._facts(now))} ; so {decision}</think><action>{action}</action>"

    def _gives_in(self, kind: str, habit: str) -> bool:
        self.tempted = kind
        return self.draw.random() < HABITS[kind][habit] * (HEEDED if kind in self.heeded else 1.0)

    def _searching(self, now: Situation) -> tuple[str, str]:
        if now.closed and not self._gives_in("closed", "leave"):
            return f"open {now.here}", f"open {now.here}"
        if now.known:
            thing, place = now.known[0]
            if place != now.here:
                return f"go back for {thing}", f"go to {place}"
            beside = [one for one in now.inside[place] if kind_of(one) == LOOKALIKES[now.goal.thing]]
            if beside and self._gives_in("lookalike", "take"):
                thing = beside[0]
            return f"take {thing}", f"take {thing} from {place}"
        new = [place for place in now.unseen if place not in now.shut] or now.unseen
        if not new:
            return "look", "look"
        place = self.draw.choice(new)
        return f"try {place}", f"go to {place}"

    def _with_it(self, now: Situation) -> tuple[str, str]:
        at_end = kind_of(now.here) == now.goal.place
        if not now.treated and not self._gives_in("untreated", "put" if at_end else "bring"):
            return self._treat(now)
        first = [place for _, place in now.delivered]
        others = [place for place in now.ends if place not in first]
        if at_end and (not first or now.here in first or self._gives_in("apart", "put")):
            return "put it down", f"move {now.carried} to {now.here}"
        strays = first and others and not at_end and self._gives_in("apart", "bring")
        place = self.draw.choice(others) if strays or not first else first[0]
        return f"bring it to {place}", f"go to {place}"

    def _treat(self, now: Situation) -> tuple[str, str]:
        verb = next(verb for verb, state in STATES.items() if state == now.goal.state)
        tool = next(place for place in (now.here, *now.places) if place and kind_of(place) == now.goal.tool)
        there = f"{verb} {now.carried} with {tool}" if tool == now.here else f"go to {tool}"
        return f"{verb} it first", there

    def _facts(self, now: Situation) -> list[str]:
        state, where = now.goal.state, next((place for _, place in now.delivered), "")
        done = f"{self._word('done')} {f'one on {where}' if where else 'none'}"
        asked = f"{self._word('asked')} two {f'{state} ' if state else ''}{now.goal.thing}"
        if now.carried:
            how = f" , {'' if now.treated else 'not '}{state}" if state else ""
            head, others = f"{self._word('carried')} {now.carried}{how}", [asked, done]
        else:
            things = "closed" if now.closed else " , ".join(now.inside.get(now.here, ())) or "nothing"
            head = f"{self._word('here')} {now.here} : {things}" if now.here else asked
            others = [done, f"{self._word('left')} {' , '.join(now.unseen) or 'nothing'}"]
        turn = self.draw.randrange(2)
        return [head, *others[turn:], *others[:turn]]

    def _word(self, slot: str) -> str:
        return self.draw.choice(WORDINGS[slot])


def demonstrations(suite: Suite, bank: SkillBank, passes: int, seed: int) -> Iterator[Demonstration]:
    """Every turn of the training games of ``passes`` other seeds, see `heeding`."""
    return heeding(_games(suite, passes, seed), Housekeeper, KINDS, bank, random.Random(seed))


def contrasts(suite: Suite, bank: SkillBank, passes: int, seed: int) -> Iterator[Demonstration]:
    """The turns of such games at which a habit has a say, each three times: without a skill, with one that warns of the
    habit and with another, each with what a housekeeper answers there who heeds it. The other turns are shown once. Now
    and then a command is done that nobody meant, so that the policy learns to go on from there."""
    draw = random.Random(seed)
    for environment, row in _games(suite, passes, seed):
        keeper = Housekeeper((), draw)
        for view in episode(environment, row, partial(_slipping, keeper))[0]:
            keeper.answer(view)
            if keeper.tempted:
                others = [kind for kind in KINDS if kind != keeper.tempted]
                heeded = [(), (keeper.tempted,), (draw.choice(others),)]
            else:
                heeded = [() if draw.random() < NO_SKILL else (draw.choice(KINDS),)]
            for kinds in heeded:
                yield under(kinds, environment.prompt, view, Housekeeper(kinds, draw).answer(view), bank, draw)


def _games(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    environment = suite.factory()
    for number in range(passes):
        yield from ((environment, row) for row in PairTasks(GAMES_SEED * (seed + 1) + number).rows("train"))


def _slipping(keeper: Housekeeper, view: View) -> str:
    """What a housekeeper does, or a command that nobody meant."""
    draw, now = keeper.draw, Situation.read(view)
    if draw.random() >= SLIPS:
        return keeper.answer(view)
    place = draw.choice(now.places)
    slip = draw.choice([f"go to {place}", f"take {now.goal.thing} {draw.randint(1, 2)} from {place}", "look"])
    return f"<think></think><action>{slip}</action>"

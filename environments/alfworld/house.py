"""A room of ALFWorld's kind in plain Python, with its commands and sentences, without TextWorld and its planner.

A player can carry one thing; closed places must be opened; a sink cleans, a microwave heats and a fridge cools the
carried thing. A room is deterministic and takes microseconds per command. It does not know the goal of a game.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

OPENING = "You are in the middle of a room."
NOTHING = "Nothing happens."
OPENABLE = ("cabinet", "drawer", "safe", "fridge", "microwave")
TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
STATES = {"clean": "clean", "heat": "hot", "cool": "cool"}
_PLACE = re.compile(r"(?P<name>\w+ \d+)(?P<closed> \(closed\))?: ?(?P<things>.*)")


def kind_of(name: str) -> str:
    """Returns ``cup`` for ``cup 2``."""
    return name.rsplit(" ", 1)[0]


@dataclass
class Furniture:
    """A piece of furniture, with the things in or on it."""

    closed: bool
    things: list[str]


@dataclass
class House:
    """A room: its places, where each thing is, and what has been done to it."""

    places: dict[str, Furniture]
    here: str = ""
    carried: str = ""
    states: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, places: Sequence[str]) -> House:
        """Parses lines such as ``desk 1: mug 1, cup 2`` and ``drawer 1 (closed):``.

        Raises:
            ValueError: on a line of another form.
        """
        read = {}
        for line in places:
            match = _PLACE.fullmatch(line)
            if match is None:
                raise ValueError(f"place {line!r} must read like 'desk 1: mug 1, cup 2' or 'drawer 1 (closed):'")
            things = match["things"].split(", ") if match["things"] else []
            read[match["name"]] = Furniture(match["closed"] is not None, things)
        return cls(read)

    def commands(self) -> tuple[str, ...]:
        """Returns the commands that are possible now; places in the order of the room."""
        here = self.places.get(self.here)
        possible = [f"go to {name}" for name in self.places if name != self.here]
        if here is not None and kind_of(self.here) in OPENABLE:
            possible.append(f"{'open' if here.closed else 'close'} {self.here}")
        if here is not None and not here.closed:
            possible += [f"move {self.carried} to {self.here}"] if self.carried else []
            possible += [] if self.carried else [f"take {thing} from {self.here}" for thing in here.things]
        if self.carried:
            verbs = [verb for verb, tool in TOOLS.items() if tool == kind_of(self.here)]
            possible += [f"{verb} {self.carried} with {self.here}" for verb in verbs]
        return tuple(possible)

    def do(self, command: str) -> str:
        """Executes a command and returns a sentence about it. An impossible one changes nothing; with free hands the
        sentence repeats what is in sight."""
        if command not in self.commands():
            return NOTHING if self.carried or not self.here else f"{NOTHING} {self._sight()}"
        verb, rest = command.split(" ", 1)
        return self._treat(verb, rest) if verb in TOOLS else getattr(self, f"_{verb}")(rest)

    def _go(self, rest: str) -> str:
        self.here = rest.removeprefix("to ")
        return self._sight()

    def _open(self, place: str) -> str:
        self.places[place].closed = False
        return f"You open the {place}. {self._sight()}"

    def _close(self, place: str) -> str:
        self.places[place].closed = True
        return f"You close the {place}."

    def _take(self, rest: str) -> str:
        self.carried, place = rest.split(" from ")
        self.places[place].things.remove(self.carried)
        return f"You pick up the {self.carried} from the {place}."

    def _move(self, rest: str) -> str:
        thing, place = rest.split(" to ")
        self.places[place].things.append(thing)
        self.carried = ""
        return f"You move the {thing} to the {place}."

    def _treat(self, verb: str, rest: str) -> str:
        thing, tool = rest.split(" with ")
        done = self.states.setdefault(thing, set())
        done -= set() if verb == "clean" else {"hot", "cool"}
        done.add(STATES[verb])
        return f"You {verb} the {thing} using the {tool}."

    def _sight(self) -> str:
        place = self.places[self.here]
        if place.closed:
            return f"The {self.here} is closed."
        seen = ", ".join(f"a {thing}" for thing in place.things) or "nothing"
        return f"{'In' if kind_of(self.here) in OPENABLE else 'On'} the {self.here}, you see {seen}."

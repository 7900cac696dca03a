"""Pairs: games of ALFWorld's kind that ask for two things in one place, each of which holds one trap.

A game is played in a room of `alignopsd_trl.environments.alfworld.house`. A thing put at a place of the required kind
is delivered and stays there. The second delivery ends the game, which is won if both things have the required kind and
state and are at the same place. The kind of a game is the mistake that it invites:

* ``untreated``: bringing the things as they are, where they should be cleaned, heated or cooled first;
* ``lookalike``: taking a similar thing (a mug for a cup);
* ``closed``: leaving closed drawers, cabinets and safes unopened until no turn is left;
* ``apart``: putting the second thing at another place of the required kind than the first.

The kind is the task's key, so that a skill bank may have skills by kind; the player does not see it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from alignopsd_trl.environments.alfworld.house import OPENABLE, OPENING, STATES, TOOLS, House, kind_of
from alignopsd_trl.environments.alfworld.options import PairOptions
from alignopsd_trl.environments.alfworld.prompt import AlfWorldPrompt, project
from alignopsd_trl.environments.base import Opening, Projection, Step, TextEnvironment
from alignopsd_trl.environments.batch import SerialBatch
from alignopsd_trl.environments.panel import SPLITS, SplitTasks

KINDS = ("untreated", "lookalike", "closed", "apart")
SIZES = {"train": 800, "test": 400}
WANTED = 2  # things of a game
_GOAL = re.compile(r"put two (?:(?P<state>clean|hot|cool) )?(?P<thing>\w+) in (?P<place>\w+)\.")
_ROOMS = {  # things that look alike, open places and closed ones
    "kitchen": (
        ("cup mug", "plate bowl", "fork spoon", "pan pot", "apple tomato"),
        ("countertop", "diningtable", "sidetable", "shelf", "stoveburner", "garbagecan"),
        ("cabinet", "drawer", "safe"),
    ),
    "bedroom": (
        ("pen pencil", "book newspaper", "keychain watch", "pillow cloth", "candle vase"),
        ("desk", "bed", "shelf", "sidetable", "dresser", "sofa"),
        ("cabinet", "drawer", "safe"),
    ),
}
LOOKALIKES = {
    thing: other
    for alike, _, _ in _ROOMS.values()
    for pair in alike
    for thing, other in (pair.split(), reversed(pair.split()))
}


@dataclass(frozen=True)
class PairGoal:
    """The goal of a game: things of a kind at a place of a kind, ``clean``, ``hot``, ``cool`` or in any state."""

    thing: str
    place: str
    state: str = ""

    @classmethod
    def read(cls, task: str) -> PairGoal:
        """Parses a task sentence. Raises ValueError for one of another form."""
        match = _GOAL.fullmatch(task)
        if match is None:
            raise ValueError(f"the task {task!r} must read like 'put two clean cup in shelf.'")
        return cls(match["thing"], match["place"], match["state"] or "")

    @property
    def tool(self) -> str:
        """The kind of place that brings the state about."""
        return next((TOOLS[verb] for verb, state in STATES.items() if state == self.state), "")


def game(kind: str, draw: Random) -> dict[str, Any]:
    """Makes a game of a kind as a dataset row: its sentence and its room."""
    room = "kitchen" if kind == "untreated" else draw.choice(tuple(_ROOMS))
    alike, opened, closed = _ROOMS[room]
    thing, similar = draw.sample(draw.choice(alike).split(), 2)
    others = [name for pair in alike if thing not in pair.split() for name in pair.split()]
    state = draw.choice(tuple(STATES.values())) if kind == "untreated" else ""
    goal = PairGoal(thing, draw.choice(opened), state)
    free = [name for name in opened if name != goal.place]
    searched = {"untreated": 3, "closed": 3}.get(kind, 4)
    stands = draw.sample(closed if kind == "closed" else free, searched)
    stands += [goal.place] * (2 if kind == "apart" else 1)
    tools = [goal.tool, draw.choice([tool for tool in TOOLS.values() if tool != goal.tool])] if state else []
    things: list[list[str]] = [[] for _ in stands]
    for number, spot in enumerate(draw.sample(range(searched), WANTED)):
        things[spot].append(f"{thing} {number + 1}")
        things[spot] += [f"{similar} {number + 1}"] if kind == "lookalike" else []
    for spot in draw.sample(range(searched), 2 if kind != "lookalike" else 0):
        things[spot].append(f"{draw.choice(others)} 1")
    for inside in things:
        draw.shuffle(inside)
    task = f"put two {state + ' ' if state else ''}{thing} in {goal.place}."
    return {"task": task, "places": _lines(stands + tools, [*things, *([] for _ in tools)], draw)}


def _lines(stands: Sequence[str], things: Sequence[Sequence[str]], draw: Random) -> list[str]:
    """Describes places in a drawn order, numbered within their kind. Those that can be closed are closed."""
    counts: dict[str, int] = {}
    lines = []
    for name, inside in draw.sample(list(zip(stands, things, strict=True)), len(stands)):
        counts[name] = counts.get(name, 0) + 1
        closed = " (closed)" if name in OPENABLE else ""
        lines.append(f"{name} {counts[name]}{closed}: {', '.join(inside)}".rstrip())
    return lines


class PairTasks(SplitTasks):
    """The games of a seed, with ``task_id, category, task, places``. Kinds take turns, and no game occurs twice.

    Args:
        seed (`int`): another one gives other games.
    """

    environment = "alfworld_pairs"

    def __init__(self, seed: int):
        self.seed = seed

    def _rows(self, split: str) -> Sequence[dict[str, Any]]:
        return _drawn(self.seed)[split]


@cache
def _drawn(seed: int) -> dict[str, tuple[dict[str, Any], ...]]:
    draw, seen, games = Random(f"pairs {seed}"), set(), {}
    for split in reversed(SPLITS):
        rows: list[dict[str, Any]] = []
        while len(rows) < SIZES[split]:
            kind = KINDS[len(rows) % len(KINDS)]
            drawn = game(kind, draw)
            key = (drawn["task"], *sorted(drawn["places"]))
            if key not in seen:
                seen.add(key)
                rows.append({"task_id": f"pairs-{split}-{len(rows):04d}", "category": kind, **drawn})
        games[split] = tuple(rows)
    return games


class PairEnvironment(TextEnvironment):
    """Plays one game at a time.

    Args:
        options (`PairOptions`, *optional*): how it is played.
    """

    concurrent = True  # it draws nothing

    def __init__(self, options: PairOptions | None = None):
        self.options = options or PairOptions()
        self.prompt = AlfWorldPrompt(self.options.template)
        self.history_length, self.max_turns = self.options.history_length, self.options.max_turns

    def reset(self, task: str, places: Sequence[str], category: str = "", **_: Any) -> Opening:
        """Starts a game.

        Args:
            task: its sentence.
            places: the room, as `House.read` takes it.
            category: its kind.

        Raises:
            ValueError: on a sentence or a place of another form.
        """
        self._goal, self._house = PairGoal.read(task), House.read(places)
        self._delivered: list[tuple[str, str]] = []
        return Opening(OPENING, task, self._commands(), category, category or None)

    def step(self, action: str) -> Step:
        """Executes any string; after the second delivery, nothing happens any more."""
        over, before = len(self._delivered) == WANTED, self._right()
        observation = self._house.do("" if over or action not in self._commands() else action)
        if observation.startswith("You move ") and kind_of(self._house.here) == self._goal.place:
            self._delivered.append((self._house.places[self._house.here].things[-1], self._house.here))
        right = self._right()
        won = right == WANTED
        return Step(
            observation=observation,
            reward=self.options.won_reward * won,
            done=len(self._delivered) == WANTED,
            won=won,
            score=right / WANTED,
            admissible=self._commands(),
            milestone=f"{right} delivered right" if right > before else None,
            metrics={"delivered": len(self._delivered)},
        )

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return project(response)

    def _right(self) -> int:
        """Counts deliveries of the right kind and state at the place of the first one."""
        goal, states = self._goal, self._house.states
        return sum(
            kind_of(thing) == goal.thing
            and (not goal.state or goal.state in states.get(thing, ()))
            and place == self._delivered[0][1]
            for thing, place in self._delivered
        )

    def _commands(self) -> tuple[str, ...]:
        """Returns the room's commands but for taking what was delivered."""
        stay = {f"take {thing} from {place}" for thing, place in self._delivered}
        return tuple(command for command in self._house.commands() if command not in stay)


@dataclass(frozen=True)
class PairFactory:
    """Makes `PairEnvironment`s."""

    options: PairOptions

    def __call__(self) -> PairEnvironment:
        return PairEnvironment(self.options)

    def batch(self, size: int, time_limit: float = 60.0) -> SerialBatch:
        """Makes a batch with all games in this process, since no command can hang."""
        return SerialBatch([self() for _ in range(size)])

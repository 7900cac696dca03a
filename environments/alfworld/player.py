"""Scripted players: the stored walkthrough, and an explorer that knows only the texts that it has read.

Both make supervised data: `play` records observations, thoughts and actions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignopsd_trl.environments.alfworld.house import OPENABLE, TOOLS, kind_of
from alignopsd_trl.environments.base import Record, Step, TextEnvironment, View

_ADJECTIVES = {"clean": "clean", "hot": "heat", "cool": "cool"}
_NAME = r"[a-z]+ \d+"
_TASKS = (
    re.compile(r"put (?:a|some) (?:(?P<adjective>clean|hot|cool) )?(?P<target>\w+) (?:in|on) (?P<place>\w+)"),
    re.compile(r"(?P<verb>clean|heat|cool) some (?P<target>\w+) and put it in (?P<place>\w+)"),
    re.compile(r"(?P<two>put two|find two) (?P<target>\w+) (?:in|and put them in) (?P<place>\w+)"),
    re.compile(r"(?:look at|examine the) (?P<target>\w+) (?:under|with) the (?P<lamp>\w+)"),
)


class Walkthrough:
    """Plays stored commands, for instance those of a game file. ``thought`` explains the last one."""

    thought = ""

    def __init__(self, commands: Sequence[str]):
        self._commands = list(commands)

    def begin(self, observation: str, task_text: str) -> None:
        self._left = iter(self._commands)

    def act(self, observation: str, admissible: Collection[str]) -> str:
        command = next(self._left, "look")
        self.thought = f"The next thing to do is to {command}."
        return command


@dataclass(frozen=True)
class ParsedTask:
    """A parsed task sentence. ``verb`` is ``clean``, ``heat``, ``cool`` or empty."""

    target: str
    place: str = ""
    lamp: str = ""
    verb: str = ""
    count: int = 1

    @classmethod
    def parse(cls, task_text: str) -> ParsedTask:
        """Parses a sentence. Raises ValueError for one of none of the six types."""
        for pattern in _TASKS:
            match = pattern.fullmatch(task_text.strip().rstrip("."))
            if match:
                parts = match.groupdict()
                verb = parts.get("verb") or _ADJECTIVES.get(parts.get("adjective") or "", "")
                count = 2 if parts.get("two") else 1
                return cls(parts["target"], parts.get("place") or "", parts.get("lamp") or "", verb, count)
        raise ValueError(f"the task {task_text!r} has none of ALFWorld's known wordings")


@dataclass
class Memory:
    """The facts that the texts have told so far."""

    receptacles: list[str] = field(default_factory=list)
    contents: dict[str, list[str]] = field(default_factory=dict)  # receptacles whose inside was seen
    closed: set[str] = field(default_factory=set)
    holding: str = ""
    origin: str = ""  # where the held object came from
    state: dict[str, set[str]] = field(default_factory=dict)  # object -> verbs done to it

    def read(self, observation: str) -> None:
        """Updates the facts from the answer to any command."""
        if match := re.search(rf"You pick up the ({_NAME}) from the ({_NAME})", observation):
            self.holding, self.origin = match.groups()
            self._drop(self.holding)
        if match := re.search(rf"You move the ({_NAME}) to the ({_NAME})", observation):
            self.contents.setdefault(match[2], []).append(match[1])
            self.holding = ""
        if match := re.search(rf"You (clean|heat|cool) the ({_NAME}) using", observation):
            done = self.state.setdefault(match[2], set())
            done -= {"heat", "cool"} if match[1] != "clean" else set()
            done.add(match[1])
        if match := re.search(rf"The ({_NAME}) is closed|You close the ({_NAME})", observation):
            self.closed.add(match[1] or match[2])
        if match := re.search(rf"(?:On the ({_NAME})|The ({_NAME}) is open\. In it), you see (.*?)\.", observation):
            place = match[1] or match[2]
            self.closed.discard(place)
            self.contents[place] = re.findall(rf"a ({_NAME})", match[3])

    def where(self, kind: str) -> list[tuple[str, str]]:
        """Returns known objects of a class as (object, receptacle)."""
        return [(o, r) for r, inside in self.contents.items() for o in inside if kind_of(o) == kind]

    def _drop(self, thing: str) -> None:
        for inside in self.contents.values():
            if thing in inside:
                inside.remove(thing)


class Explorer:
    """Searches the room, remembers what it read, and does the task.

    It looks at open places before closed ones, and uses the texts and the admissible commands alone.

    Args:
        error_rate: probability that a turn is wasted on a random other admissible command. The explorer reads its
            result and goes on from there.
        seed: of its own random numbers.
    """

    def __init__(self, error_rate: float = 0.0, seed: int = 0):
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate={error_rate} must be between 0 and 1")
        self._error_rate, self._seed = error_rate, seed
        self.thought = ""

    def begin(self, observation: str, task_text: str) -> None:
        """Starts an episode.

        Raises:
            ValueError: if the task sentence has none of the known wordings.
        """
        self._rng = random.Random(f"{self._seed}/{observation}")
        self._goal = ParsedTask.parse(task_text)
        room = observation.partition("you see ")[2].partition(".")[0]
        self._memory = Memory(receptacles=re.findall(rf"a ({_NAME})", room))
        self._begun = False

    def act(self, observation: str, admissible: Collection[str]) -> str:
        """The next command, from the answer to the last one and the commands that are possible now."""
        if self._begun:
            self._memory.read(observation)
        self._begun = True
        command, thought = self._decide(admissible)
        others = sorted(set(admissible) - {command, "help"})
        if others and self._rng.random() < self._error_rate:
            command = self._rng.choice(others)
            thought = f"Maybe I should {command}."
        self.thought = thought
        return command

    def _decide(self, admissible: Collection[str]) -> tuple[str, str]:
        memory, goal = self._memory, self._goal
        held = memory.holding
        if held and kind_of(held) != goal.target:
            return self._put_away(admissible)
        if held:
            return self._use_held(held, admissible)
        wanted = [(thing, place) for thing, place in memory.where(goal.target) if not self._delivered(thing, place)]
        if not wanted:
            return self._explore(f"a {goal.target}", admissible)
        thing, place = wanted[0]
        return self._at(place, f"take {thing} from {place}", f"{thing} is in {place} and I need it", admissible)

    def _use_held(self, held: str, admissible: Collection[str]) -> tuple[str, str]:
        goal = self._goal
        if goal.lamp:
            lamps = self._memory.where(goal.lamp)
            if not lamps:
                return self._explore(f"a {goal.lamp}", admissible)
            lamp, place = lamps[0]
            return self._at(place, f"use {lamp}", f"I have {held} and look at it under {lamp}", admissible)
        if goal.verb and goal.verb not in self._memory.state.get(held, ()):
            tool = self._first(TOOLS[goal.verb])
            command = f"{goal.verb} {held} with {tool}"
            return self._at(tool, command, f"I have {held} and must {goal.verb} it first", admissible, opening=False)
        place = self._destination()
        return self._at(place, f"move {held} to {place}", f"I have {held} and bring it to {place}", admissible)

    def _put_away(self, admissible: Collection[str]) -> tuple[str, str]:
        held = self._memory.holding
        for command in sorted(admissible):
            if command.startswith(f"move {held} to "):
                return command, f"I do not need {held}, so I put it down."
        place = self._memory.origin
        return self._at(place, f"move {held} to {place}", f"I do not need {held} and bring it back", admissible)

    def _explore(self, wanted: str, admissible: Collection[str]) -> tuple[str, str]:
        memory = self._memory
        left = [place for place in memory.receptacles if place not in memory.contents]
        if not left:  # something was moved by mistake: look everywhere again
            memory.contents.clear()
            left = memory.receptacles
        here = [place for place in left if f"examine {place}" in admissible]
        place = min(here or left, key=lambda place: kind_of(place) in OPENABLE)
        return self._at(place, f"examine {place}", f"I still look for {wanted}, maybe in {place}", admissible)

    def _at(
        self, place: str, command: str, reason: str, admissible: Collection[str], opening: bool = True
    ) -> tuple[str, str]:
        """Returns the command if it is possible, else a command that leads to it: going to the place, or opening it."""
        if f"examine {place}" not in admissible:
            return f"go to {place}", f"{reason}, so I go to {place}."
        if opening and f"open {place}" in admissible:
            return f"open {place}", f"{reason}, so I open {place}."
        return command, f"{reason}."

    def _delivered(self, thing: str, place: str) -> bool:
        goal = self._goal
        if goal.lamp or kind_of(place) != goal.place:
            return False
        return goal.count == 2 and place == self._destination()

    def _destination(self) -> str:
        """Returns the receptacle for all targets: one that holds a target already, else the first of its class."""
        full = [place for _, place in self._memory.where(self._goal.target) if kind_of(place) == self._goal.place]
        return full[0] if full else self._first(self._goal.place)

    def _first(self, kind: str) -> str:
        for place in self._memory.receptacles:
            if kind_of(place) == kind:
                return place
        raise ValueError(f"the room has no {kind}, which the task needs")


@dataclass(frozen=True)
class Move:
    """One turn of an expert: observation, thought, action and result."""

    view: View
    thought: str
    action: str
    step: Step

    @property
    def response(self) -> str:
        """Returns the turn as a policy would have written it."""
        return f"<think>{self.thought}</think>\n<action>{self.action}</action>"


def play(environment: TextEnvironment, expert: Explorer | Walkthrough, task: Mapping[str, Any]) -> list[Move]:
    """Plays one episode to its end and returns its turns."""
    opening = environment.reset(**task)
    expert.begin(opening.observation, opening.task_text)
    observation, admissible = opening.observation, opening.admissible
    records: list[Record] = []
    moves: list[Move] = []
    while len(moves) < environment.max_turns and not (moves and moves[-1].step.done):
        shown = tuple(records[-environment.history_length :]) if environment.history_length else ()
        view = View(opening.task_text, observation, tuple(admissible), shown, len(records))
        action = expert.act(observation, admissible)
        step = environment.step(action)
        moves.append(Move(view, expert.thought, action, step))
        records.append(Record(len(records) + 1, observation, action, step.observation))
        observation, admissible = step.observation, step.admissible
    return moves

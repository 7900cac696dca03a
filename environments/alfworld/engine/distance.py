"""A lower bound on the number of commands to a game's goal: the work on each thing, and the ways in between.

An episode with fewer turns left is surely lost. The bound is 0 for goals of an unknown form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

from alignopsd_trl.environments.alfworld.engine.grammar import Fact

Facts = Mapping[str, Set[Fact]]
TOOLS = {"isclean": "sinkbasintype", "ishot": "microwavetype", "iscool": "fridgetype"}
MOST_NEEDED = 10  # for two things: take, treat and put each, three moves, and put down a thing that is carried
_KIND = re.compile(r"\(objecttype (\?\w+) (\w+)\)")
_PLACE = re.compile(r"\(receptacletype \?\w+ (\w+)\)")
_LAMP = re.compile(r"\(istoggled (\?\w+)\)")


@dataclass(frozen=True)
class PlannerGoal:
    """A goal: a thing of a kind in a place of a kind and in a state, two such things, or one held in a lamp's light.

    Args:
        kind: type of the thing.
        place: type of the receptacle, or of the lamp.
        state: key of `TOOLS`, or nothing.
    """

    kind: str
    place: str
    state: str = ""
    two: bool = False
    light: bool = False

    @classmethod
    def of(cls, problem: str) -> PlannerGoal | None:
        """Returns the goal of a PDDL problem; `None` for one of another form."""
        text = problem.lower()  # as the planner writes names
        text = text[text.find("(:goal") :].split("(:metric")[0]
        kinds, places, lamp = dict(_KIND.findall(text)), set(_PLACE.findall(text)), _LAMP.search(text)
        if lamp and lamp[1] in kinds and len(kinds) == 2:
            place = kinds.pop(lamp[1])
            return cls(*kinds.values(), place, light=True)
        states = [state for state in TOOLS if f"({state} " in text]
        if lamp or len(set(kinds.values())) != 1 or len(places) != 1 or len(states) > 1:
            return None
        return cls(*set(kinds.values()), *places, *states, two=len(kinds) == 2)


@dataclass(frozen=True)
class _Task:
    """The work on one thing: commands other than moves, and the sets of locations to visit, in order."""

    work: int
    stops: tuple[frozenset[str], ...] = ()


def least_commands(goal: PlannerGoal | None, facts: Facts) -> int:
    """Returns a lower bound on the commands from here to a goal, 0 if the goal is unknown.

    Args:
        facts: predicate -> tuples of ids, as `World.facts`.
    """
    if goal is None:
        return 0
    scene = _Scene(goal, facts)
    things = [thing for thing, kind in facts.get("objecttype", ()) if kind == goal.kind]
    tasks = [scene.task(thing) for thing in things]
    chosen = combinations(tasks, 2) if goal.two else [(task,) for task in tasks]
    totals = [sum(task.work for task in some) + max(scene.ways(task.stops) for task in some) for some in chosen]
    least = min(totals, default=0)
    return least + bool(least and scene.held - set(things))  # any other thing in the hands must be put down


def sub_goals(goal: PlannerGoal | None, facts: Facts) -> set[str]:
    """Returns the names of the parts of a goal that hold now: things of the kind taken, one of them in the state, and
    those that are where they belong; with a lamp, its light. Empty if the goal is unknown.

    Args:
        facts: predicate -> tuples of ids, as `World.facts`.
    """
    if goal is None:
        return set()
    kinds, types = facts.get("objecttype", ()), {place: kind for place, kind in facts.get("receptacletype", ())}
    things = {thing for thing, kind in kinds if kind == goal.kind}
    ready = {thing for thing in things if not goal.state or (thing,) in facts.get(goal.state, ())}
    there = {thing for thing, at in facts.get("inreceptacle", ()) if thing in ready and types.get(at) == goal.place}
    taken = there | {thing for _, thing in facts.get("holds", ()) if thing in things}
    lit = {thing for thing, kind in kinds if kind == goal.place and (thing,) in facts.get("istoggled", ())}
    thing, place = goal.kind.removesuffix("type"), goal.place.removesuffix("type")
    counts = range(1, 2 + goal.two)
    names = {f"{count} {thing} taken" for count in counts if count <= len(taken)}
    names |= {f"{count} {thing} in {place}" for count in counts if count <= len(there)}
    names |= {f"{thing} {goal.state.removeprefix('is')}"} if goal.state and ready else set()
    return names | ({f"{place} on"} if lit else set())


class _Scene:
    def __init__(self, goal: PlannerGoal, facts: Facts):
        self._goal, self._facts = goal, facts
        self.held = {thing for _, thing in facts.get("holds", ())}
        self._here = frozenset(location for _, location in facts.get("atlocation", ()))
        self._types = {place: kind for place, kind in facts.get("receptacletype", ())}

    def task(self, thing: str) -> _Task:
        goal, held = self._goal, thing in self.held
        inside = {place for inner, place in self._facts.get("inreceptacle", ()) if inner == thing}
        shut = not goal.two and all(self._closed(place) for place in inside)  # one opening may serve both things
        taking = 0 if held else 1 + shut
        fetched = () if held else (self._locations(inside),)
        if goal.light:
            lamps = {lamp for lamp, kind in self._facts.get("objecttype", ()) if kind == goal.place}
            under = {place for inner, place in self._facts.get("inreceptacle", ()) if inner in lamps}
            dark = not any((lamp,) in self._facts.get("istoggled", ()) for lamp in lamps)
            return _Task(taking + dark, (*fetched, self._locations(under)))
        ready = not goal.state or (thing,) in self._facts.get(goal.state, ())
        if ready and any(self._types.get(place) == goal.place for place in inside):
            return _Task(0)
        treated = () if ready else (self._of_type(TOOLS[goal.state]),)
        return _Task(taking + (not ready) + 1, (*fetched, *treated, self._of_type(goal.place)))

    def ways(self, stops: Sequence[Set[str]]) -> int:
        """Returns the least number of moves to visit all stops in order."""
        here, count = set(self._here), 0
        for stop in stops:
            count += not here & stop
            here = here & stop or set(stop)
        return count

    def _closed(self, place: str) -> bool:
        return (place,) in self._facts.get("openable", ()) and (place,) not in self._facts.get("opened", ())

    def _of_type(self, kind: str) -> frozenset[str]:
        return self._locations({place for place, own in self._types.items() if own == kind})

    def _locations(self, places: Set[str]) -> frozenset[str]:
        known = self._facts.get("receptacleatlocation", ())
        return frozenset(location for place, location in known if place in places)

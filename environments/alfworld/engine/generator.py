"""Generates games: six task types, four kinds of rooms, proven solvable, the same bytes for a seed everywhere.

`draw` is pure: it draws a room with things in it, a task and a walkthrough from
``random.Random(f"{seed}/{task type}/{attempt}")`` and nothing else. `prove` replays walkthroughs in the engine;
`generate_all` raises ``attempt`` until a game passes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.environments.alfworld.engine.categories import TASK_TYPES
from alignopsd_trl.environments.alfworld.engine.games import Game
from alignopsd_trl.environments.alfworld.engine.play import display_names
from alignopsd_trl.environments.alfworld.engine.problem import LAMPS, Thing, able, contents, goal, problem
from alignopsd_trl.environments.alfworld.engine.rooms import SIZE, Names, Receptacle, Room, layout, scenes
from alignopsd_trl.environments.base import EnvironmentBatch, Failure

VERSION = 1
ATTEMPTS = 100
THINGS = (6, 18)  # beside those of the task
_NUMBER = {kind: number for number, kind in TASK_TYPES.items()}
_ROOMS = {
    1: ("kitchen", "livingroom", "bedroom", "bathroom"),
    2: ("livingroom", "bedroom"),
    3: ("kitchen", "bathroom"),
    4: ("kitchen",),
    5: ("kitchen",),
    6: ("kitchen", "livingroom", "bedroom", "bathroom"),
}
_TREATMENT = {  # task -> verb, where it is done, affordance
    3: ("clean", "SinkBasin", "Cleanable"),
    4: ("heat", "Microwave", "Heatable"),
    5: ("cool", "Fridge", "Coolable"),
}
_LAMP_PLACES = {
    "DeskLamp": ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable"),
    "FloorLamp": ("SideTable", "Dresser", "CoffeeTable", "DiningTable"),
}
_SENTENCES = {
    1: ("put a {o} in {r}", "put some {o} on {r}"),
    2: ("look at {o} under the {r}", "examine the {o} with the {r}"),
    3: ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    4: ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
    5: ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
    6: ("put two {o} in {r}", "find two {o} and put them in {r}"),
}


@dataclass(frozen=True)
class Variant:
    """The kind of games to draw: training or held-out scenes, the number of receptacles in a room, and the number of
    things beside those that the task needs."""

    held_out: bool = False
    size: tuple[int, int] = SIZE
    things: tuple[int, int] = THINGS


def draw(task_type: str, seed: int, attempt: int = 0, variant: Variant | None = None) -> Game | None:
    """Draws a game that has not been proven yet; None if the drawn room allows no such task."""
    variant = variant or Variant()
    number = _NUMBER[task_type]
    rng = random.Random(f"{seed}/{task_type}/{attempt}")
    room = layout(rng.choice(scenes(rng.choice(_ROOMS[number]), variant.held_out)), variant.size)
    pairs = _pairs(number, room)
    if not pairs:
        return None
    place = rng.choice(sorted(pairs))
    target = rng.choice(pairs[place])
    things = _things(rng, number, room, target, place, variant.things)
    sentence = rng.choice(_SENTENCES[number]).format(o=target.lower(), r=place.lower())
    trial = f"trial_G{VERSION}_{seed:06d}_{attempt}"
    return Game(
        task_id=f"{task_type}-{target}-None-{place}-{room.scene}/{trial}",
        goal=sentence,
        traj_data=_traj_data(trial, task_type, target, place, room, sentence),
        pddl_problem=problem(f"plan_{trial}", room, things, goal(number, target, place)),
        walkthrough=tuple(_walkthrough(rng, number, room, things, target, place)),
    )


def generate_all(
    wanted: Sequence[tuple[str, int]],
    batch: EnvironmentBatch,
    size: int,
    variant: Variant | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Game]:
    """Generates a proven game for each (task type, seed), in that order.

    Args:
        batch: plays the proofs; its slots 0 to ``size - 1`` are used.
        progress: gets the number of games just made.

    Raises:
        RuntimeError: if a seed gives no provable game in 100 attempts.
    """
    games: dict[int, Game] = {}
    attempts = dict.fromkeys(range(len(wanted)), 0)
    while attempts:
        chosen = list(attempts)[:size]
        drafts = {index: _next_draft(*wanted[index], attempts, index, variant) for index in chosen}
        for index, proven in zip(drafts, prove(list(drafts.values()), batch), strict=True):
            if proven:
                games[index] = drafts[index]
                del attempts[index]
        progress(sum(index not in attempts for index in chosen))
    return [games[index] for index in range(len(wanted))]


def prove(games: Sequence[Game], batch: EnvironmentBatch) -> list[bool]:
    """Whether the engine accepts each walkthrough: every command admissible, won at the last step and not before.

    Raises:
        RuntimeError: if the engine fails, which is not the game's fault.
    """
    slots = list(range(len(games)))
    tasks = [{"task_id": game.task_id, "game": game.joined()} for game in games]
    admissible = dict(zip(slots, (opening.admissible for opening in _sound(batch.reset(slots, tasks))), strict=True))
    proven = [False] * len(games)
    for depth in range(max((len(game.walkthrough) for game in games), default=0)):
        live = [slot for slot in admissible if games[slot].walkthrough[depth] in admissible[slot]]
        admissible = {}
        steps = _sound(batch.step(live, [games[slot].walkthrough[depth] for slot in live]))
        for slot, step in zip(live, steps, strict=True):
            last = depth + 1 == len(games[slot].walkthrough)
            if step.won == last:
                proven[slot] = last
                admissible |= {} if last else {slot: step.admissible}
    return proven


def _sound(outcomes: Sequence[Any]) -> Sequence[Any]:
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            raise RuntimeError(f"the engine failed on a generated game: {outcome.message}")
    return outcomes


def _next_draft(task_type: str, seed: int, attempts: dict[int, int], index: int, variant: Variant | None) -> Game:
    while attempts[index] < ATTEMPTS:
        draft = draw(task_type, seed, attempts[index], variant)
        attempts[index] += 1
        if draft is not None:
            return draft
    raise RuntimeError(f"no provable game of type {task_type} in {ATTEMPTS} attempts for seed {seed}")


def _pairs(number: int, room: Room) -> dict[str, list[str]]:
    """Returns the target classes of each place (or lamp) class that also fit another receptacle class in the room."""
    homes = {kind: set(contents(kind)) for kind in room.classes}
    everything = sorted(set().union(*homes.values()))
    if number == 2:
        lamps = [lamp for lamp in LAMPS if set(_LAMP_PLACES[lamp]) & set(room.classes)]
        return {lamp: everything for lamp in lamps if everything}
    _, tool, affordance = _TREATMENT.get(number, (None, None, None))
    fit = set(able(affordance)) if affordance else set(everything)
    if tool and tool not in homes:
        return {}
    pairs = {
        place: [
            target
            for target in sorted(homes[place] & fit)
            if any(target in homes[other] for other in homes if other != place)
        ]
        for place in room.classes
        if place != tool
    }
    return {place: targets for place, targets in pairs.items() if targets}


def _things(rng: random.Random, number: int, room: Room, target: str, place: str, more: tuple[int, int]) -> list[Thing]:
    names = Names(rng)
    homes = [(receptacle, contents(receptacle.kind)) for receptacle in room.receptacles]
    count = rng.randint(2, 3) if number == 6 else rng.randint(1, 2)
    start = [receptacle for receptacle, kinds in homes if target in kinds and receptacle.kind != place]
    things = [Thing(target, names.object(target), rng.choice(start)) for _ in range(count)]
    if number == 2:
        things += _lamps(rng, names, room, place)
    others = sorted({kind for _, kinds in homes for kind in kinds} - {target})
    for _ in range(rng.randint(*more) if others else 0):
        kind = rng.choice(others)
        spot = rng.choice([receptacle for receptacle, kinds in homes if kind in kinds])
        things.append(Thing(kind, names.object(kind), spot))
    return things


def _lamps(rng: random.Random, names: Names, room: Room, wanted: str) -> list[Thing]:
    """Returns the lamp of the task and, in some rooms, one of the other kind."""
    lamps = []
    for lamp in LAMPS:
        spots = [receptacle for receptacle in room.receptacles if receptacle.kind in _LAMP_PLACES[lamp]]
        if spots and (lamp == wanted or rng.random() < 0.3):
            lamps.append(Thing(lamp, names.object(lamp), rng.choice(spots)))
    return lamps


def _traj_data(trial: str, task_type: str, target: str, place: str, room: Room, sentence: str) -> dict:
    look = task_type == TASK_TYPES[2]
    return {
        "task_id": trial,
        "task_type": task_type,
        "pddl_params": {
            "object_target": target,
            "parent_target": "" if look else place,
            "mrecep_target": "",
            "toggle_target": place if look else "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{room.scene}", "scene_num": room.scene},
        "turk_annotations": {"anns": [{"task_desc": f"{sentence[0].upper()}{sentence[1:]}."}]},
    }


class _Walker:
    """Writes the commands of a walkthrough from the generator's knowledge of the room."""

    def __init__(self, room: Room, things: list[Thing]):
        ids = [r.id for r in room.receptacles] + [thing.id for thing in things]
        self._names = display_names([identity.lower() for identity in ids])
        self._here = room.start
        self._open = {receptacle.id for receptacle in room.receptacles if receptacle.opened}
        self.commands: list[str] = []

    def name(self, item: Receptacle | Thing) -> str:
        return self._names[item.id.lower()]

    def go(self, receptacle: Receptacle, opening: bool = False) -> None:
        if receptacle.location != self._here:  # "go to" is not offered for what already stands here
            self.commands.append(f"go to {self.name(receptacle)}")
            self._here = receptacle.location
        if opening and receptacle.openable and receptacle.id not in self._open:
            self.commands.append(f"open {self.name(receptacle)}")
            self._open.add(receptacle.id)

    def take(self, thing: Thing) -> None:
        self.go(thing.place, opening=True)
        self.commands.append(f"take {self.name(thing)} from {self.name(thing.place)}")


def _walkthrough(
    rng: random.Random, number: int, room: Room, things: list[Thing], target: str, place: str
) -> list[str]:
    walker = _Walker(room, things)
    targets = [thing for thing in things if thing.kind == target]
    if number == 2:
        walker.take(targets[0])
        lamp = next(thing for thing in things if thing.kind == place)
        walker.go(lamp.place)
        walker.commands.append(f"use {walker.name(lamp)}")
        return walker.commands
    goal_place = rng.choice([receptacle for receptacle in room.receptacles if receptacle.kind == place])
    for thing in targets[: 2 if number == 6 else 1]:
        walker.take(thing)
        if number in _TREATMENT:
            verb, kind, _ = _TREATMENT[number]
            tool = next(receptacle for receptacle in room.receptacles if receptacle.kind == kind)
            walker.go(tool)
            walker.commands.append(f"{verb} {walker.name(thing)} with {walker.name(tool)}")
        walker.go(goal_place, opening=True)
        walker.commands.append(f"move {walker.name(thing)} to {walker.name(goal_place)}")
    return walker.commands

"""Writes a room with things and a task as a PDDL problem of ALFWorld's domain."""

from __future__ import annotations

from dataclasses import dataclass

from alignopsd_trl.environments.alfworld.engine.rooms import Receptacle, Room

ACTION_FACTS = {"Cleanable": "cleanable", "Heatable": "heatable", "Coolable": "coolable", "Sliceable": "sliceable"}
LAMPS = ("DeskLamp", "FloorLamp")
_HOLLOW = frozenset({"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"})
# the domain's actions name these types as constants: they are declared in every problem
_CONSTANT_OBJECTS = ("KnifeType", "ButterKnifeType")
_CONSTANT_RECEPTACLES = ("SinkBasinType", "MicrowaveType", "FridgeType")
_STATE = {3: ("cleanable", "isClean"), 4: ("heatable", "isHot"), 5: ("coolable", "isCool")}


@dataclass(frozen=True)
class Thing:
    """An object: class, id and the receptacle in which it starts."""

    kind: str
    id: str
    place: Receptacle


def problem(name: str, room: Room, things: list[Thing], goal: str) -> str:
    """Returns the text of ``initial_state.pddl``."""
    objects = sorted({f"{thing.kind}Type" for thing in things} | set(_CONSTANT_OBJECTS))
    receptacles = sorted({f"{kind}Type" for kind in room.classes} | set(_CONSTANT_RECEPTACLES))
    locations = sorted({receptacle.location for receptacle in room.receptacles} | {room.start})
    declared = ["agent1 - agent"]
    declared += [f"{kind} - otype" for kind in objects] + [f"{kind} - rtype" for kind in receptacles]
    declared += [f"{thing.id} - object" for thing in sorted(things, key=lambda thing: thing.id)]
    declared += [f"{r.id} - receptacle" for r in sorted(room.receptacles, key=lambda r: r.id)]
    declared += [f"{location} - location" for location in locations]
    facts = [f"(atLocation agent1 {room.start})"]
    facts += _receptacle_facts(room) + _object_facts(things) + _containment(room, things) + ["(= (total-cost) 0)"]
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{_lines(declared)}\n)\n(:init\n{_lines(facts)}\n)\n"
        f"(:goal {goal})\n(:metric minimize (total-cost))\n)\n"
    )


def goal(task: int, target: str, place: str) -> str:
    """Returns the goal condition of a task type (1 to 6). ``place`` is the receptacle's class, or the lamp's for 2."""
    if task == 2:
        lamp = (
            f"(exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (toggleable ?t) (objectType ?t "
            f"{place}Type) (isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))"
        )
        held = f"(exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o)))"
        return f"(and {lamp} {held})"
    if task == 6:
        return (
            f"(exists (?r - receptacle ?o1 - object ?o2 - object) (and (not (= ?o1 ?o2)) (receptacleType ?r "
            f"{place}Type) (objectType ?o1 {target}Type) (objectType ?o2 {target}Type) (inReceptacle ?o1 ?r) "
            f"(inReceptacle ?o2 ?r)))"
        )
    state = "".join(f" ({predicate} ?o)" for predicate in _STATE.get(task, ()))
    return (
        f"(exists (?r - receptacle ?o - object) (and (objectType ?o {target}Type) (receptacleType ?r {place}Type)"
        f"{state} (inReceptacle ?o ?r)))"
    )


def contents(kind: str) -> list[str]:
    """Returns the object classes that a receptacle class can hold at the start of a game, sorted."""
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS

    return sorted(cls for cls in VAL_RECEPTACLE_OBJECTS.get(kind, ()) if not cls.endswith("Sliced"))


def able(action: str) -> list[str]:
    """Returns the object classes of an entry of ALFWorld's affordance table (``Heatable``, ...), sorted."""
    from alfworld.gen.constants import VAL_ACTION_OBJECTS

    return sorted(VAL_ACTION_OBJECTS[action])


def _receptacle_facts(room: Room) -> list[str]:
    facts = []
    for receptacle in room.receptacles:
        facts.append(f"(receptacleType {receptacle.id} {receptacle.kind}Type)")
        facts.append(f"(receptacleAtLocation {receptacle.id} {receptacle.location})")
        facts += [f"(openable {receptacle.id})"] * receptacle.openable
        facts += [f"(opened {receptacle.id})"] * receptacle.opened
    return facts


def _object_facts(things: list[Thing]) -> list[str]:
    affordances = {predicate: set(able(action)) for action, predicate in ACTION_FACTS.items()}
    facts = []
    for thing in things:
        facts.append(f"(objectType {thing.id} {thing.kind}Type)")
        facts.append(f"(inReceptacle {thing.id} {thing.place.id})")
        facts.append(f"(objectAtLocation {thing.id} {thing.place.location})")
        facts.append(f"({'toggleable' if thing.kind in LAMPS else 'pickupable'} {thing.id})")
        facts += [f"(isReceptacleObject {thing.id})"] * (thing.kind in _HOLLOW)
        facts += [f"({predicate} {thing.id})" for predicate, kinds in affordances.items() if thing.kind in kinds]
    return facts


def _containment(room: Room, things: list[Thing]) -> list[str]:
    kinds = {thing.kind for thing in things}
    return [
        f"(canContain {place}Type {kind}Type)" for place in room.classes for kind in contents(place) if kind in kinds
    ]


def _lines(items: list[str]) -> str:
    return "\n".join(items)

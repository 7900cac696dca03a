"""Passages of the invented world: every fact once, then neutral sentences until the passage is long enough."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from assets.worlds.closed_world_facts import Entity
from assets.worlds.closed_world_names import FILLER

SHORTEST, SENTENCES = 46, 5  # words of a passage; sentences up to which more may follow
_SENTENCES: dict[str, list[str]] = {
    "region": [
        "{name} is a country whose capital is {capital.name}.",
        "Its currency is {currency}, and its national emblem is {emblem}.",
        "The {demonym} parliament is called {parliament}.",
    ],
    "mountain": [
        "{name} is a mountain in {region.name}.",
        "It rises to {height} metres above the sea.",
        "The first recorded ascent was made in {climbed} by {climber.name}.",
    ],
    "river": [
        "The {name} is a river with a length of {length} kilometres.",
        "It rises on the slopes of {source.name} and flows into {mouth}.",
    ],
    "town": [
        "{name} is a town in {region.name}, on the banks of the {river.name}.",
        "It was founded in {founded} and has a population of {population}.",
        "The town is best known for its {specialty}.",
    ],
    "university": [
        "The {name} is a university in the town of {town.name}.",
        "It was founded in {founded}, and its academic colours are {colours}.",
    ],
    "person": [
        "{birth}",
        "{last_name} studied at the {university.name}.",
        "In {award_year} the work was honoured with {award}.",
    ],
    "book": [
        "{name} is {a_genre} written by {author.name} and first published in {year}.",
        "The story is set in the town of {setting.name}.",
    ],
    "film": [
        "{name} is a {year} {kind} directed by {director.name}.",
        "It stars {actor.name} in the leading role, and the music was composed by {composer.name}.",
        "The running time is {runtime} minutes.",
    ],
    "company": [
        "{name} is a manufacturer of {product} founded in {year} by {founder.name}.",
        "Its headquarters are in {hq.name}.",
    ],
    "structure": [
        "{name} is a {what} in {town.name} designed by {architect.name}.",
        "It was opened in {opened} and is {size} metres {dimension}.",
    ],
    "festival": [
        "The {name} is held every {month} in {town.name}.",
        "It celebrates {what} and has taken place since {since}.",
    ],
}
_BIRTHS = [
    "{name} was {a_nationality} {job} born in {born} in the town of {birthplace.name}.",
    "Born in {birthplace.name} in {born}, {name} was {a_nationality} {job}.",
]


def sentences_for(entity: Entity, rng: random.Random) -> list[str]:
    """Every fact of an entity once, in a sentence of its own where possible."""
    words = {"name": entity.name, **entity.facts, **_EXTRA.get(entity.kind, lambda *_: {})(entity, rng)}
    return [sentence.format_map(words) for sentence in _SENTENCES[entity.kind]]


def render(entity: Entity, rng: random.Random) -> str:
    """The text of a passage."""
    parts, filler = list(entity.sentences), list(FILLER[entity.kind])
    rng.shuffle(filler)
    while filler and (len(" ".join(parts).split()) < SHORTEST or (len(parts) < SENTENCES and rng.random() < 0.35)):
        parts.append(filler.pop())
    return " ".join(parts)


def a_or_an(phrase: str) -> str:
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def _person(entity: Entity, rng: random.Random) -> dict[str, Any]:
    nationality = a_or_an(entity.facts["birthplace"].facts["region"].facts["demonym"])
    words = {"name": entity.name, "a_nationality": nationality, **entity.facts}
    return {"birth": rng.choice(_BIRTHS).format_map(words), "last_name": entity.name.split()[-1]}


_EXTRA: dict[str, Callable[[Entity, random.Random], dict[str, Any]]] = {
    "person": _person,
    "book": lambda entity, _: {"a_genre": a_or_an(entity.facts["genre"])},
    "structure": lambda entity, _: {"dimension": "long" if entity.facts["what"] == "bridge" else "tall"},
}

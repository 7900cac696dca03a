"""Questions about the invented world: candidates of three types, and a draw that asks no fact twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from assets.worlds.closed_world_facts import Entity, World
from assets.worlds.closed_world_wordings import BRIDGE, COMPARE, QUOTA, SINGLE, art, label

DRAWS = 30  # of a pair, for each relation that compares


@dataclass(frozen=True)
class Candidate:
    """A question that may be asked. ``wordings`` goes by data source, ``*`` standing for the others; ``reads`` are the
    entities whose passages it needs, and ``bridge`` the name of the one in between."""

    type: str
    relation: str
    wordings: dict[str, str | None]
    answers: list[str]
    reads: tuple[Entity, ...]
    bridge: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.relation, *sorted(entity.pid for entity in self.reads))

    def wording(self, source: str) -> str | None:
        return self.wordings.get(source, self.wordings["*"])

    def row(self, source: str) -> dict[str, Any]:
        metadata = dict(
            type=self.type,
            relation=self.relation,
            supporting_ids=[entity.pid for entity in self.reads],
            supporting_titles=[entity.title for entity in self.reads],
            bridge=self.bridge,
        )
        return dict(question=self.wording(source), golden_answers=self.answers, data_source=source, metadata=metadata)


def build_questions(world: World, texts: dict[str, str], rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Split -> rows. No fact (relation and passages) is asked in both splits."""
    pools = [list(_singles(world)), list(_bridges(world, texts)), list(_comparisons(world, rng))]
    for pool in pools:
        rng.shuffle(pool)
    used: set[tuple[str, ...]] = set()
    found = {}
    for split in ("test", "train"):
        rows = []
        for source, (single, bridge, comparison) in QUOTA[split].items():
            quotas = (
                (single, max(3, -(-single // 8))),
                (bridge, max(2, bridge // 8)),
                (comparison, max(2, comparison // 5)),
            )
            for pool, (number, most) in zip(pools, quotas, strict=True):
                rows += [candidate.row(source) for candidate in _take(pool, source, number, most, used)]
        if split == "train":
            rng.shuffle(rows)
        found[split] = [dict(id=f"{split}_{number}", **row) for number, row in enumerate(rows)]
    return found


def _take(pool: list[Candidate], source: str, number: int, most: int, used: set[tuple[str, ...]]) -> list[Candidate]:
    """``number`` candidates whose fact is unused, at most ``most`` of one relation."""
    taken: list[Candidate] = []
    relations: Counter[str] = Counter()
    for candidate in pool:
        if len(taken) == number:
            break
        if candidate.key in used or candidate.wording(source) is None or relations[candidate.relation] >= most:
            continue
        used.add(candidate.key)
        relations[candidate.relation] += 1
        taken.append(candidate)
    if len(taken) != number:
        raise RuntimeError(f"only {len(taken)} of {number} candidates")
    return taken


def _singles(world: World) -> Iterable[Candidate]:
    for relation, (kind, trivia, popqa, answers) in SINGLE.items():
        for entity in world[kind]:
            if relation == "person_job" and entity.qualifier:
                continue  # the wording that tells namesakes apart would give the answer away
            text = trivia.format(x=label(entity))
            wordings = {
                "*": text,
                "nq": text[:-1].lower(),  # search-box style: lower case, no question mark
                "popqa": popqa and popqa.format(x=label(entity)),
            }
            yield Candidate("single_hop", relation, wordings, answers(entity.facts), (entity,))


def _bridges(world: World, texts: dict[str, str]) -> Iterable[Candidate]:
    for relation, (kind, fact, second, wording) in BRIDGE.items():
        for entity in world[kind]:
            middle = entity.facts[fact]
            answers = SINGLE[second][3](middle.facts)
            if any(answer.lower() in texts[entity.pid].lower() for answer in answers):
                continue  # the first passage would give the answer away
            question = {"*": wording.format(x=label(entity))}
            yield Candidate("bridge", relation, question, answers, (entity, middle), middle.name)


def _comparisons(world: World, rng: random.Random) -> Iterable[Candidate]:
    for relation, (kind, fact, larger, gap, wording) in COMPARE.items():
        pool = [entity for entity in world[kind] if not entity.qualifier]
        for _ in range(DRAWS):
            first, second = rng.sample(pool, 2)
            if abs(first.facts[fact] - second.facts[fact]) < gap:
                continue
            pick: Callable[..., Entity] = max if larger else min
            winner = pick(first, second, key=lambda entity: entity.facts[fact])  # noqa: B023 - used at once
            question = {"*": wording.format(a=art(first.name), b=art(second.name))}
            yield Candidate("comparison", relation, question, _short_names(winner.name), (first, second))


def _short_names(name: str) -> list[str]:
    shorter = [name.removeprefix(prefix) for prefix in ("River ", "Mount ")]
    return [name, *(short for short in shorter if short != name)]

"""The invented world: entities of eleven kinds with mutually consistent facts.

The order of random draws is part of the data: another order is another world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from assets.worlds import closed_world_names as names

Item = TypeVar("Item")
World = dict[str, list["Entity"]]


@dataclass
class Entity:
    """One passage: its kind, display name, unique title and facts. ``qualifier`` tells namesakes apart."""

    kind: str
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    qualifier: str = ""
    sentences: list[str] = field(default_factory=list)
    pid: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.qualifier})" if self.qualifier else self.name


class Namer:
    """Draws names without repetition from a seeded generator."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used: set[str] = set()

    def draw(self, make: Callable[[random.Random], str]) -> str:
        for _ in range(10_000):
            name = make(self.rng)
            if name.lower() not in self.used:
                self.used.add(name.lower())
                return name
        raise RuntimeError("name material exhausted")

    def join(self, *parts: Sequence[str]) -> str:
        """A new name of one piece from each list."""
        return self.draw(lambda rng: "".join([rng.choice(part) for part in parts]))


def build_world(rng: random.Random) -> World:
    """All entities, by kind."""
    return _Builder(rng).build()


class _Builder:
    def __init__(self, rng: random.Random):
        self.rng, self.namer = rng, Namer(rng)
        self.world: World = {}

    def build(self) -> World:
        for kind, make in {
            "region": self._regions,
            "mountain": self._mountains,
            "river": self._rivers,
            "town": self._towns,
            "university": self._universities,
            "person": self._people,
            "book": self._books,
            "film": self._films,
            "company": self._companies,
            "structure": self._structures,
            "festival": self._festivals,
        }.items():
            self.world[kind] = list(make())
            self._complete(kind)
        return self.world

    def _complete(self, kind: str) -> None:
        """Facts that point from earlier entities to those of this kind."""
        if kind == "town":
            for region in self.world["region"]:
                towns = [town for town in self.world["town"] if town.facts["region"] is region]
                region.facts["capital"] = self.rng.choice(towns)
        if kind == "person":
            self._pair_namesakes()
            climbers = self._of("mountaineer")
            for number, mountain in enumerate(self.world["mountain"]):
                mountain.facts["climber"] = climber = climbers[number % 8]
                mountain.facts["climbed"] = climber.facts["born"] + self.rng.randint(22, 45)
        if kind == "film":
            self._pair_titles()

    def _regions(self) -> Iterable[Entity]:
        for name, demonym, currency, emblem, parliament in names.REGIONS:
            facts = dict(demonym=demonym, currency=currency, emblem=emblem, parliament=parliament)
            yield Entity("region", name, facts)

    def _mountains(self) -> Iterable[Entity]:
        for height in self.rng.sample(range(1210, 4980, 7), 16):
            name = self.namer.draw(
                lambda rng: "Mount " + (rng.choice(names.MOUNT_A) + rng.choice(names.MOUNT_B)).title()
            )
            yield Entity("mountain", name, dict(region=self._any("region"), height=height))

    def _rivers(self) -> Iterable[Entity]:
        lengths = self.rng.sample(range(84, 940, 3), 20)
        for length, source in zip(lengths, self.rng.choices(self.world["mountain"], k=20), strict=True):
            name = "River " + self.namer.join(names.RIVER_A, names.RIVER_B)
            yield Entity("river", name, dict(length=length, source=source, mouth=self.rng.choice(names.SEAS)))

    def _towns(self) -> Iterable[Entity]:
        years, populations = self.rng.sample(range(1080, 1790), 40), self.rng.sample(range(3100, 96000, 50), 40)
        for number in range(40):
            facts = dict(
                region=self.world["region"][number % 8],
                river=self.world["river"][number % 20],
                founded=years[number],
                population=populations[number],
                specialty=names.SPECIALTY[number % 20],
            )
            yield Entity("town", self.namer.join(names.TOWN_A, names.TOWN_B), facts)

    def _universities(self) -> Iterable[Entity]:
        towns, years = self.rng.sample(self.world["town"], 12), self.rng.sample(range(1391, 1880), 12)
        for town, year, colours in zip(towns, years, names.COLOURS, strict=True):
            yield Entity("university", f"University of {town.name}", dict(town=town, founded=year, colours=colours))

    def _people(self) -> Iterable[Entity]:
        jobs = [job for job, count in names.JOBS.items() for _ in range(count)]
        for job, born in zip(jobs, self.rng.sample(range(1842, 1968), len(jobs)), strict=True):
            name = self.namer.draw(lambda rng: f"{rng.choice(names.FIRST)} {rng.choice(names.LAST)}")
            facts = dict(
                job=job,
                born=born,
                birthplace=self._any("town"),
                university=self._any("university"),
                award=self.rng.choice(names.AWARDS),
                award_year=born + self.rng.randint(29, 58),
            )
            yield Entity("person", name, facts)

    def _books(self) -> Iterable[Entity]:
        for author in self._cycle(self._of("novelist"), 28):
            facts = dict(author=author, name=self.namer.draw(self._work_title))
            facts["year"] = author.facts["born"] + self.rng.randint(25, 60)
            facts.update(genre=self.rng.choice(names.GENRES), setting=self._any("town"))
            yield Entity("book", facts.pop("name"), facts)

    def _films(self) -> Iterable[Entity]:
        casts = [self._cycle(self._of(job), 28) for job in ("film director", "composer", "actor")]
        years = self.rng.sample(range(1921, 2011), 28)
        for director, composer, actor, year in zip(*casts, years, strict=True):
            name = self.namer.draw(self._work_title)
            facts = dict(director=director, composer=composer, actor=actor, year=year)
            facts.update(kind=self.rng.choice(names.FILM_KINDS), runtime=self.rng.randint(71, 164))
            yield Entity("film", name, facts)

    def _companies(self) -> Iterable[Entity]:
        suffixes = self._cycle(names.COMPANY_B, 24)
        founders = self._cycle(self._of("industrialist"), 24)
        for base, suffix, founder in zip(names.COMPANY_A, suffixes, founders, strict=True):
            facts = dict(founder=founder, hq=self._any("town"), product=names.PRODUCT[suffix])
            facts["year"] = founder.facts["born"] + self.rng.randint(24, 50)
            yield Entity("company", f"{base} {suffix}", facts)

    def _structures(self) -> Iterable[Entity]:
        sizes = self.rng.sample(range(58, 890, 3), 16)
        architects = self._cycle(self._of("architect"), 16)
        places = zip(sizes, architects, self.rng.sample(self.world["town"], 16), strict=True)
        for number, (size, architect, town) in enumerate(places):
            what = "Bridge" if number % 2 == 0 else "Tower"
            facts = dict(what=what.lower(), architect=architect, town=town)
            facts["size"] = size if what == "Bridge" else 31 + size // 8
            name = f"{self.namer.join(names.STRUCTURE_A)} {what}"
            facts["opened"] = architect.facts["born"] + self.rng.randint(27, 55)
            yield Entity("structure", name, facts)

    def _festivals(self) -> Iterable[Entity]:
        towns = self.rng.sample(self.world["town"], 12)
        for month, what, town in zip(names.MONTHS, names.CELEBRATES, towns, strict=True):
            name = f"{self.namer.join(names.FESTIVAL_A)} Festival"
            yield Entity("festival", name, dict(town=town, month=month, what=what, since=self.rng.randint(1702, 1938)))

    def _pair_namesakes(self) -> None:
        """Three pairs of people share a name: the profession in the title tells them apart."""
        for jobs in (("novelist", "architect"), ("composer", "mountaineer"), ("actor", "industrialist")):
            first, second = (self._of(job)[-1] for job in jobs)
            second.name = first.name
            first.qualifier, second.qualifier = jobs

    def _pair_titles(self) -> None:
        """Six films share the title of a novel, so the title alone is ambiguous."""
        for book, film in list(zip(self.world["book"], self.world["film"], strict=True))[:6]:
            film.name, film.qualifier, book.qualifier = book.name, "film", "novel"
            film.facts["year"] = book.facts["year"] + self.rng.randint(6, 30)

    def _any(self, kind: str) -> Entity:
        return self.rng.choice(self.world[kind])

    def _of(self, job: str) -> list[Entity]:
        return [person for person in self.world["person"] if person.facts["job"] == job]

    def _cycle(self, items: Sequence[Item], count: int) -> list[Item]:
        pool = list(items)
        self.rng.shuffle(pool)
        return [pool[number % len(pool)] for number in range(count)]

    def _work_title(self, rng: random.Random) -> str:
        what, link = rng.choice(names.WORK_A), rng.choice(["of", "for", "from"])
        return f"{what} {link} {rng.choice(self.world['town']).name}"

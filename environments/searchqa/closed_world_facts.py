"""The invented world: entities with mutually consistent facts, and the passage that states them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from environments.searchqa.closed_world_names import (
    AWARDS,
    CELEBRATES,
    COLOURS,
    COMPANY_A,
    COMPANY_B,
    FILLER,
    FILM_KINDS,
    FIRST,
    GENRES,
    LAST,
    MONTHS,
    MOUNT_A,
    MOUNT_B,
    PRODUCT,
    REGIONS,
    RIVER_A,
    RIVER_B,
    SEAS,
    SPECIALTY,
    TOWN_A,
    TOWN_B,
    WORK_A,
)


@dataclass
class Entity:
    """One passage: its kind, display name, unique title and facts."""

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


def build_world(rng: random.Random) -> dict[str, list[Entity]]:
    """All entities, by kind. The order of draws is part of the data: another order is another world."""
    namer = Namer(rng)
    regions = []
    for name, demonym, currency, emblem, parliament in REGIONS:
        regions.append(
            Entity("region", name, dict(demonym=demonym, currency=currency, emblem=emblem, parliament=parliament))
        )
    mountains = [
        Entity(
            "mountain",
            namer.draw(lambda r: "Mount " + (r.choice(MOUNT_A) + r.choice(MOUNT_B)).title()),
            dict(region=rng.choice(regions), height=h),
        )
        for h in rng.sample(range(1210, 4980, 7), 16)
    ]
    rivers = [
        Entity(
            "river",
            "River " + namer.draw(lambda r: r.choice(RIVER_A) + r.choice(RIVER_B)),
            dict(length=n, source=m, mouth=rng.choice(SEAS)),
        )
        for n, m in zip(rng.sample(range(84, 940, 3), 20), rng.choices(mountains, k=20), strict=True)
    ]
    towns = []
    years, pops = rng.sample(range(1080, 1790), 40), rng.sample(range(3100, 96000, 50), 40)
    for i in range(40):
        region = regions[i % len(regions)]
        towns.append(
            Entity(
                "town",
                namer.draw(lambda r: r.choice(TOWN_A) + r.choice(TOWN_B)),
                dict(
                    region=region,
                    river=rivers[i % len(rivers)],
                    founded=years[i],
                    population=pops[i],
                    specialty=SPECIALTY[i % len(SPECIALTY)],
                ),
            )
        )
    for region in regions:
        region.facts["capital"] = rng.choice([t for t in towns if t.facts["region"] is region])
    universities = [
        Entity("university", f"University of {t.name}", dict(town=t, founded=y, colours=c))
        for t, y, c in zip(rng.sample(towns, 12), rng.sample(range(1391, 1880), 12), COLOURS, strict=True)
    ]
    jobs = (
        ["novelist"] * 20
        + ["film director"] * 16
        + ["composer"] * 14
        + ["actor"] * 16
        + ["architect"] * 10
        + ["industrialist"] * 12
        + ["mountaineer"] * 8
    )
    people, births = [], rng.sample(range(1842, 1968), 96)
    for i, job in enumerate(jobs):
        people.append(
            Entity(
                "person",
                namer.draw(lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}"),
                dict(
                    job=job,
                    born=births[i],
                    birthplace=rng.choice(towns),
                    university=rng.choice(universities),
                    award=rng.choice(AWARDS),
                    award_year=births[i] + rng.randint(29, 58),
                ),
            )
        )
    by_job: dict[str, list[Entity]] = {}
    for p in people:
        by_job.setdefault(p.facts["job"], []).append(p)
    # Three pairs of namesakes: the profession in the title tells them apart.
    for a, b in (("novelist", "architect"), ("composer", "mountaineer"), ("actor", "industrialist")):
        first, second = by_job[a][-1], by_job[b][-1]
        second.name = first.name
        first.qualifier, second.qualifier = a, b
    for m, climber in zip(mountains, [by_job["mountaineer"][i % 8] for i in range(16)], strict=True):
        m.facts["climber"] = climber
        m.facts["climbed"] = climber.facts["born"] + rng.randint(22, 45)

    def cycle(items: list[Any], n: int) -> list[Any]:
        pool = list(items)
        rng.shuffle(pool)
        return [pool[i % len(pool)] for i in range(n)]

    def work_title(r: random.Random) -> str:
        return f"{r.choice(WORK_A)} {r.choice(['of', 'for', 'from'])} {r.choice(towns).name}"

    books = []
    for author in cycle(by_job["novelist"], 28):
        books.append(
            Entity(
                "book",
                namer.draw(work_title),
                dict(
                    author=author,
                    year=author.facts["born"] + rng.randint(25, 60),
                    genre=rng.choice(GENRES),
                    setting=rng.choice(towns),
                ),
            )
        )
    films = []
    directors, composers, actors = (cycle(by_job[j], 28) for j in ("film director", "composer", "actor"))
    film_years = rng.sample(range(1921, 2011), 28)
    for i in range(28):
        films.append(
            Entity(
                "film",
                namer.draw(work_title),
                dict(
                    director=directors[i],
                    composer=composers[i],
                    actor=actors[i],
                    year=film_years[i],
                    kind=rng.choice(FILM_KINDS),
                    runtime=rng.randint(71, 164),
                ),
            )
        )
    # Six films share the title of a novel, so the title alone is ambiguous.
    for book, film in zip(books[:6], films[:6], strict=True):
        film.name, film.qualifier, book.qualifier = book.name, "film", "novel"
        film.facts["year"] = book.facts["year"] + rng.randint(6, 30)
    companies = []
    suffixes = cycle(COMPANY_B, 24)
    for base, suffix, founder in zip(COMPANY_A, suffixes, cycle(by_job["industrialist"], 24), strict=True):
        companies.append(
            Entity(
                "company",
                f"{base} {suffix}",
                dict(
                    founder=founder,
                    hq=rng.choice(towns),
                    product=PRODUCT[suffix],
                    year=founder.facts["born"] + rng.randint(24, 50),
                ),
            )
        )
    structures = []
    sizes = rng.sample(range(58, 890, 3), 16)
    for i, (architect, town) in enumerate(zip(cycle(by_job["architect"], 16), rng.sample(towns, 16), strict=True)):
        what = "Bridge" if i % 2 == 0 else "Tower"
        adjective = namer.draw(
            lambda r: r.choice(
                [
                    "Chandler's",
                    "Wether",
                    "Saint Olm's",
                    "Long",
                    "Mercer's",
                    "Tallow",
                    "Regent's",
                    "Fuller's",
                    "Heron",
                    "Lockkeeper's",
                    "Quarrymen's",
                    "Twin",
                    "Almoner's",
                    "Ferry",
                    "Linden",
                    "Mint",
                ]
            )
        )
        size = sizes[i] if what == "Bridge" else 31 + sizes[i] // 8
        structures.append(
            Entity(
                "structure",
                f"{adjective} {what}",
                dict(
                    what=what.lower(),
                    architect=architect,
                    town=town,
                    size=size,
                    opened=architect.facts["born"] + rng.randint(27, 55),
                ),
            )
        )
    festivals = []
    for month, what, town in zip(MONTHS, CELEBRATES, rng.sample(towns, 12), strict=True):
        label = namer.draw(
            lambda r: r.choice(
                [
                    "Reed",
                    "Candle",
                    "Ropemakers'",
                    "Barley",
                    "Tin Drum",
                    "Swift",
                    "Millers'",
                    "Kite",
                    "Honey",
                    "Frost",
                    "Ferrymen's",
                    "Quince",
                ]
            )
        )
        festivals.append(
            Entity(
                "festival", f"{label} Festival", dict(town=town, month=month, what=what, since=rng.randint(1702, 1938))
            )
        )
    return dict(
        region=regions,
        mountain=mountains,
        river=rivers,
        town=towns,
        university=universities,
        person=people,
        book=books,
        film=films,
        company=companies,
        structure=structures,
        festival=festivals,
    )


def a_or_an(phrase: str) -> str:
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def sentences_for(e: Entity, rng: random.Random) -> list[str]:
    """State every fact of ``e`` once, in a sentence of its own where possible."""
    f, pick = e.facts, rng.choice
    if e.kind == "region":
        return [
            f"{e.name} is a country whose capital is {f['capital'].name}.",
            f"Its currency is {f['currency']}, and its national emblem is {f['emblem']}.",
            f"The {f['demonym']} parliament is called {f['parliament']}.",
        ]
    if e.kind == "mountain":
        return [
            f"{e.name} is a mountain in {f['region'].name}.",
            f"It rises to {f['height']} metres above the sea.",
            f"The first recorded ascent was made in {f['climbed']} by {f['climber'].name}.",
        ]
    if e.kind == "river":
        return [
            f"The {e.name} is a river with a length of {f['length']} kilometres.",
            f"It rises on the slopes of {f['source'].name} and flows into {f['mouth']}.",
        ]
    if e.kind == "town":
        return [
            f"{e.name} is a town in {f['region'].name}, on the banks of the {f['river'].name}.",
            f"It was founded in {f['founded']} and has a population of {f['population']}.",
            f"The town is best known for its {f['specialty']}.",
        ]
    if e.kind == "university":
        return [
            f"The {e.name} is a university in the town of {f['town'].name}.",
            f"It was founded in {f['founded']}, and its academic colours are {f['colours']}.",
        ]
    if e.kind == "person":
        nationality = f["birthplace"].facts["region"].facts["demonym"]
        return [
            pick(
                [
                    f"{e.name} was {a_or_an(nationality)} {f['job']} born in {f['born']} in the town of "
                    f"{f['birthplace'].name}.",
                    f"Born in {f['birthplace'].name} in {f['born']}, {e.name} was {a_or_an(nationality)} {f['job']}.",
                ]
            ),
            f"{e.name.split()[-1]} studied at the {f['university'].name}.",
            f"In {f['award_year']} the work was honoured with {f['award']}.",
        ]
    if e.kind == "book":
        return [
            f"{e.name} is {a_or_an(f['genre'])} written by {f['author'].name} and first published in {f['year']}.",
            f"The story is set in the town of {f['setting'].name}.",
        ]
    if e.kind == "film":
        return [
            f"{e.name} is a {f['year']} {f['kind']} directed by {f['director'].name}.",
            f"It stars {f['actor'].name} in the leading role, and the music was composed by {f['composer'].name}.",
            f"The running time is {f['runtime']} minutes.",
        ]
    if e.kind == "company":
        return [
            f"{e.name} is a manufacturer of {f['product']} founded in {f['year']} by {f['founder'].name}.",
            f"Its headquarters are in {f['hq'].name}.",
        ]
    if e.kind == "structure":
        measure = f"is {f['size']} metres " + ("long" if f["what"] == "bridge" else "tall")
        return [
            f"{e.name} is a {f['what']} in {f['town'].name} designed by {f['architect'].name}.",
            f"It was opened in {f['opened']} and {measure}.",
        ]
    if e.kind == "festival":
        return [
            f"The {e.name} is held every {f['month']} in {f['town'].name}.",
            f"It celebrates {f['what']} and has taken place since {f['since']}.",
        ]
    raise ValueError(e.kind)


def render(e: Entity, rng: random.Random) -> str:
    """Facts first, then neutral colour sentences until the passage is long enough."""
    parts = list(e.sentences)
    filler = list(FILLER[e.kind])
    rng.shuffle(filler)
    while filler and (len(" ".join(parts).split()) < 46 or (len(parts) < 5 and rng.random() < 0.35)):
        parts.append(filler.pop())
    return " ".join(parts)

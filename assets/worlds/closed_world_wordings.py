"""Wordings of the questions about the invented world, in the style of seven public data sets."""

from __future__ import annotations

from typing import Protocol


class Named(Protocol):
    """An entity of the invented world. ``qualifier`` tells namesakes apart."""

    name: str
    kind: str
    qualifier: str | None


def art(name: str) -> str:
    """Returns the definite article for names that take one inside a sentence."""
    return "the " + name if name.startswith(("River ", "University ")) or name.endswith("Festival") else name


def label(e: Named) -> str:
    """Returns the name by which a question refers to an entity, with the qualifier of namesakes."""
    if e.qualifier:
        return f"the {e.qualifier} {e.name}"
    if e.kind == "film":
        return f"the film {e.name}"
    if e.kind == "book":
        return f"the novel {e.name}"
    return art(e.name)


# relation -> (kind, trivia-style wording, popqa-style wording, answer getter)
SINGLE = {
    "town_founded": ("town", "In which year was the town of {x} founded?", None, lambda f: [str(f["founded"])]),
    "town_population": ("town", "What is the population of {x}?", None, lambda f: [str(f["population"])]),
    "town_river": (
        "town",
        "On the banks of which river does {x} lie?",
        "What river is {x} located on?",
        lambda f: [f["river"].name, f["river"].name.replace("River ", "")],
    ),
    "town_region": (
        "town",
        "In which country is the town of {x}?",
        "In what country is {x}?",
        lambda f: [f["region"].name],
    ),
    "town_specialty": ("town", "For which product is the town of {x} best known?", None, lambda f: [f["specialty"]]),
    "river_length": (
        "river",
        "How many kilometres long is {x}?",
        None,
        lambda f: [f"{f['length']} kilometres", str(f["length"])],
    ),
    "river_source": (
        "river",
        "On the slopes of which mountain does {x} rise?",
        "What is the source of {x}?",
        lambda f: [f["source"].name, f["source"].name.replace("Mount ", "")],
    ),
    "river_mouth": ("river", "Into which body of water does {x} flow?", None, lambda f: [f["mouth"]]),
    "mountain_height": (
        "mountain",
        "How many metres high is {x}?",
        None,
        lambda f: [f"{f['height']} metres", str(f["height"])],
    ),
    "mountain_climber": ("mountain", "Who made the first recorded ascent of {x}?", None, lambda f: [f["climber"].name]),
    "mountain_region": (
        "mountain",
        "In which country does {x} stand?",
        "In what country is {x}?",
        lambda f: [f["region"].name],
    ),
    "region_capital": (
        "region",
        "Which town is the capital of {x}?",
        "What is the capital of {x}?",
        lambda f: [f["capital"].name],
    ),
    "region_currency": ("region", "What is the currency of {x} called?", None, lambda f: [f["currency"]]),
    "region_emblem": ("region", "Which animal is the national emblem of {x}?", None, lambda f: [f["emblem"]]),
    "person_born": ("person", "In which year was {x} born?", None, lambda f: [str(f["born"])]),
    "person_birthplace": (
        "person",
        "In which town was {x} born?",
        "In what city was {x} born?",
        lambda f: [f["birthplace"].name],
    ),
    "person_job": ("person", "What was the profession of {x}?", "What is {x}'s occupation?", lambda f: [f["job"]]),
    "person_university": ("person", "At which university did {x} study?", None, lambda f: [f["university"].name]),
    "person_award": ("person", "Which honour was given to {x}?", None, lambda f: [f["award"]]),
    "book_author": ("book", "Which writer created {x}?", "Who is the author of {x}?", lambda f: [f["author"].name]),
    "book_year": ("book", "In which year was {x} first published?", None, lambda f: [str(f["year"])]),
    "book_genre": ("book", "What kind of book is {x}?", "What genre is {x}?", lambda f: [f["genre"]]),
    "book_setting": ("book", "In which town is {x} set?", None, lambda f: [f["setting"].name]),
    "film_director": (
        "film",
        "Who was behind the camera as director of {x}?",
        "Who was the director of {x}?",
        lambda f: [f["director"].name],
    ),
    "film_composer": (
        "film",
        "Whose music is heard in {x}?",
        "Who was the composer of {x}?",
        lambda f: [f["composer"].name],
    ),
    "film_actor": ("film", "Who plays the leading role in {x}?", None, lambda f: [f["actor"].name]),
    "film_runtime": (
        "film",
        "How many minutes does {x} run?",
        None,
        lambda f: [f"{f['runtime']} minutes", str(f["runtime"])],
    ),
    "company_founder": ("company", "Who founded {x}?", None, lambda f: [f["founder"].name]),
    "company_year": ("company", "In which year was {x} founded?", None, lambda f: [str(f["year"])]),
    "company_hq": ("company", "In which town does {x} have its headquarters?", None, lambda f: [f["hq"].name]),
    "company_product": ("company", "What does {x} manufacture?", None, lambda f: [f["product"]]),
    "university_founded": ("university", "In which year was {x} founded?", None, lambda f: [str(f["founded"])]),
    "university_colours": ("university", "What are the academic colours of {x}?", None, lambda f: [f["colours"]]),
    "structure_architect": ("structure", "Which architect designed {x}?", None, lambda f: [f["architect"].name]),
    "structure_opened": ("structure", "In which year was {x} opened?", None, lambda f: [str(f["opened"])]),
    "structure_town": ("structure", "In which town can {x} be found?", None, lambda f: [f["town"].name]),
    "festival_month": ("festival", "In which month is {x} held?", None, lambda f: [f["month"]]),
    "festival_what": ("festival", "What does {x} celebrate?", None, lambda f: [f["what"]]),
    "festival_since": ("festival", "Since which year has {x} taken place?", None, lambda f: [str(f["since"])]),
}

# relation -> (first kind, first fact, second relation, wording)
BRIDGE = {
    "film_director_birthplace": (
        "film",
        "director",
        "person_birthplace",
        "In which town was the director of {x} born?",
    ),
    "film_director_born": ("film", "director", "person_born", "In which year was the director of {x} born?"),
    "film_composer_university": (
        "film",
        "composer",
        "person_university",
        "At which university did the composer of the music for {x} study?",
    ),
    "film_actor_born": ("film", "actor", "person_born", "In which year was the leading actor of {x} born?"),
    "book_author_university": (
        "book",
        "author",
        "person_university",
        "At which university did the author of {x} study?",
    ),
    "book_author_birthplace": ("book", "author", "person_birthplace", "Where was the author of {x} born?"),
    "book_setting_river": ("book", "setting", "town_river", "Which river flows past the town in which {x} is set?"),
    "company_founder_birthplace": (
        "company",
        "founder",
        "person_birthplace",
        "In which town was the founder of {x} born?",
    ),
    "company_founder_born": ("company", "founder", "person_born", "When was the founder of {x} born?"),
    "company_hq_river": ("company", "hq", "town_river", "Which river runs by the town where {x} has its headquarters?"),
    "structure_architect_university": (
        "structure",
        "architect",
        "person_university",
        "At which university did the architect of {x} study?",
    ),
    "structure_town_founded": (
        "structure",
        "town",
        "town_founded",
        "In which year was the town that contains {x} founded?",
    ),
    "festival_town_specialty": (
        "festival",
        "town",
        "town_specialty",
        "Which product is the host town of {x} best known for?",
    ),
    "festival_town_river": ("festival", "town", "town_river", "Which river flows past the town that hosts {x}?"),
    "mountain_climber_birthplace": (
        "mountain",
        "climber",
        "person_birthplace",
        "Where was the first person to climb {x} born?",
    ),
    "river_source_height": (
        "river",
        "source",
        "mountain_height",
        "How high is the mountain on which {x} rises, in metres?",
    ),
    "person_birthplace_founded": (
        "person",
        "birthplace",
        "town_founded",
        "In which year was the birthplace of {x} founded?",
    ),
    "person_university_colours": (
        "person",
        "university",
        "university_colours",
        "What are the academic colours of the university attended by {x}?",
    ),
    "university_town_population": (
        "university",
        "town",
        "town_population",
        "What is the population of the town that is home to {x}?",
    ),
}

# relation -> (kind, fact, larger-wins?, minimal gap, wording)
COMPARE = {
    "river_longer": ("river", "length", True, 15, "Which river is longer, {a} or {b}?"),
    "mountain_higher": ("mountain", "height", True, 40, "Which mountain is higher, {a} or {b}?"),
    "town_older": ("town", "founded", False, 10, "Which town was founded earlier, {a} or {b}?"),
    "town_larger": ("town", "population", True, 900, "Which town has the larger population, {a} or {b}?"),
    "film_earlier": ("film", "year", False, 2, "Which film came out first, {a} or {b}?"),
    "film_longer": ("film", "runtime", True, 4, "Which film has the longer running time, {a} or {b}?"),
    "book_earlier": ("book", "year", False, 3, "Which novel was published earlier, {a} or {b}?"),
    "company_older": ("company", "year", False, 3, "Which company was founded first, {a} or {b}?"),
    "person_older": ("person", "born", False, 2, "Who was born earlier, {a} or {b}?"),
    "university_older": ("university", "founded", False, 5, "Which university is older, {a} or {b}?"),
}

# split -> data source -> (single, bridge, comparison)
QUOTA = {
    "train": {"nq": (140, 0, 0), "hotpotqa": (0, 40, 20)},
    "test": {
        "nq": (30, 0, 0),
        "triviaqa": (30, 0, 0),
        "popqa": (40, 0, 0),
        "hotpotqa": (0, 20, 10),
        "2wikimultihopqa": (0, 10, 25),
        "musique": (0, 20, 0),
        "bamboogle": (0, 10, 5),
    },
}

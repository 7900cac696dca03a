"""A scripted player of the closed world: search, read, search again, answer.

It knows only the wordings of the closed world: every fact comes from passages that it has read in the episode. Without
errors it answers every question; with an error rate it gives examples of mixed quality.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alignopsd_trl.environments.base import View
from alignopsd_trl.environments.searchqa.engine.actions import ANSWER, SEARCH, Action
from alignopsd_trl.environments.searchqa.engine.observations import read_titles
from assets.worlds.closed_world_wordings import BRIDGE, COMPARE, SINGLE

# fact of a kind -> where a passage of that kind states it
_FACTS = {
    "town_founded": r"It was founded in (\d+)",
    "town_population": r"population of (\d+)",
    "town_river": r"on the banks of the (River [^.]+)\.",
    "town_region": r"is a town in ([^,]+), on",
    "town_specialty": r"best known for its ([^.]+)\.",
    "river_length": r"length of (\d+ kilometres)",
    "river_source": r"on the slopes of (.+?) and flows",
    "river_mouth": r"flows into ([^.]+)\.",
    "mountain_height": r"rises to (\d+ metres)",
    "mountain_climber": r"was made in \d+ by ([^.]+)\.",
    "mountain_region": r"is a mountain in ([^.]+)\.",
    "region_capital": r"whose capital is ([^.]+)\.",
    "region_currency": r"Its currency is (.+?), and",
    "region_emblem": r"national emblem is ([^.]+)\.",
    "person_born": r"[Bb]orn in (?:[^\d.]+ in )?(\d{4})",
    "person_birthplace": r"in the town of ([^.]+)\.|Born in (.+?) in \d{4}",
    "person_job": r" was an? \S+ (.+?)(?: born in|\.)",
    "person_university": r"studied at the ([^.]+)\.",
    "person_award": r"was honoured with ([^.]+)\.",
    "book_author": r"written by (.+?) and first",
    "book_year": r"first published in (\d+)",
    "book_genre": r" is an? (\w+ \w+) written by",
    "book_setting": r"is set in the town of ([^.]+)\.",
    "film_director": r"directed by ([^.]+)\.",
    "film_composer": r"was composed by ([^.]+)\.",
    "film_actor": r"It stars (.+?) in the leading",
    "film_runtime": r"running time is (\d+ minutes)",
    "film_year": r" is a (\d{4}) ",
    "company_founder": r"founded in \d+ by ([^.]+)\.",
    "company_year": r"founded in (\d+) by",
    "company_hq": r"headquarters are in ([^.]+)\.",
    "company_product": r"manufacturer of (.+?) founded in",
    "university_founded": r"It was founded in (\d+)",
    "university_colours": r"academic colours are ([^.]+)\.",
    "university_town": r"is a university in the town of ([^.]+)\.",
    "structure_architect": r"designed by ([^.]+)\.",
    "structure_opened": r"was opened in (\d+)",
    "structure_town": r"is a (?:bridge|tower) in (.+?) designed",
    "festival_month": r"is held every (\w+) in",
    "festival_town": r"is held every \w+ in ([^.]+)\.",
    "festival_what": r"It celebrates (.+?) and has taken",
    "festival_since": r"has taken place since (\d+)",
}

_PROFESSIONS = {
    "author": "novelist",
    "director": "film director",
    "composer": "composer",
    "actor": "actor",
    "founder": "industrialist",
    "architect": "architect",
    "climber": "mountaineer",
}


class _Plan(NamedTuple):
    """A parsed question: ``subjects`` to read about, the fact of each, and how the facts become the answer. Some
    wordings serve several kinds of things, hence several names for one fact."""

    subjects: tuple[str, ...]
    fact: tuple[str, ...]
    second_fact: tuple[str, ...] = ()  # of the entity that the first fact names
    profession: str = ""  # of that entity, which tells namesakes apart
    larger_wins: bool | None = None  # of two subjects


class _Fact(NamedTuple):
    """A fact from a passage: its value, and the words around it."""

    value: str
    clause: str


class ScriptedPlayer:
    """Answers a `View` by a response in the format of the prompt.

    Args:
        error_rate: chance of a mistake at each turn: a useless search, or a wrong answer.
        seed: of the mistakes.
        quotes: thoughts quote the words that state a fact, instead of saying that a passage states it.

    Raises:
        ValueError: if the error rate is not within [0, 1].
    """

    def __init__(self, error_rate: float = 0.0, seed: int = 0, quotes: bool = False):
        if not 0.0 <= error_rate <= 1.0:
            raise ValueError(f"error_rate must be within [0, 1], is {error_rate}")
        self.error_rate, self.quotes = error_rate, quotes
        self._random = random.Random(seed)

    def respond(self, view: View) -> str:
        known = {title: text for record in view.history for title, text in read_titles(record.result).items()}
        if self._random.random() < self.error_rate:
            thought, action = self._blunder(view.task_text, known)
        else:
            thought, action = decide(view.task_text, known, self.quotes)
        return f"<think>{thought}</think>\n{action}"

    def _blunder(self, question: str, known: Mapping[str, str]) -> tuple[str, Action]:
        words = re.findall(r"\w+", question)
        if known and self._random.random() < 0.5:
            return "One of these titles may be the answer.", Action(ANSWER, self._random.choice(sorted(known)))
        return "I try a word of the question.", Action(SEARCH, self._random.choice(words))


def decide(question: str, known: Mapping[str, str], quotes: bool = False) -> tuple[str, Action]:
    """Returns the thought and the action that follow from the question and the passages read so far (title -> text)."""
    plan = _plan(question)
    facts: list[_Fact] = []
    for subject in plan.subjects:
        text = _find(subject, known)
        if text is None:
            return f"I need the passage on {subject}.", Action(SEARCH, subject)
        facts.append(_read(plan.fact, text))
    if plan.larger_wins is not None:
        thought = f"The figures are {facts[0].value} and {facts[1].value}."
        return _quote(facts) if quotes else thought, Action(ANSWER, _winner(plan, facts))
    if not plan.second_fact:
        return _quote(facts) if quotes else "The passage states it.", Action(ANSWER, facts[0].value)
    bridge = f"{plan.profession} {facts[0].value}".strip()
    text = _find(bridge, known)
    if text is None:
        thought = f"The first step leads to {facts[0].value}."
        return _quote(facts) if quotes else thought, Action(SEARCH, bridge)
    second = _read(plan.second_fact, text)
    return _quote([second]) if quotes else "Both passages are there.", Action(ANSWER, second.value)


def _quote(facts: Sequence[_Fact]) -> str:
    return f"It says {', '.join(fact.clause for fact in facts)}."


def _winner(plan: _Plan, facts: Sequence[_Fact]) -> str:
    numbers = [int(re.findall(r"\d+", fact.value)[0]) for fact in facts]
    best = max(numbers) if plan.larger_wins else min(numbers)
    return re.sub("^the ", "", plan.subjects[numbers.index(best)])


def _plan(question: str) -> _Plan:
    question = question.strip().removesuffix("?")
    for pattern, relation in _COMPARISONS:
        if match := pattern.fullmatch(question):
            kind, fact, larger, _, _ = COMPARE[relation]
            return _Plan((match["a"], match["b"]), (f"{kind}_{fact}",), larger_wins=larger)
    for pattern, relation in _BRIDGES:
        if match := pattern.fullmatch(question):
            kind, fact, second, _ = BRIDGE[relation]
            return _Plan((match["x"],), (f"{kind}_{fact}",), (second,), _PROFESSIONS.get(fact, ""))
    found = [(match["x"], relation) for pattern, relation in _SINGLES if (match := pattern.fullmatch(question))]
    if not found:
        raise ValueError(f"not a question of the closed world: {question!r}")
    subject = min((x for x, _ in found), key=len)  # the wording that says most leaves the shortest name
    return _Plan((subject,), tuple(relation for x, relation in found if x == subject))


def _pattern(wording: str) -> re.Pattern[str]:
    text = re.escape(wording.removesuffix("?"))
    for slot in "xab":
        text = text.replace(rf"\{{{slot}\}}", f"(?P<{slot}>.+)")
    return re.compile(text, re.IGNORECASE)


def _find(label: str, known: Mapping[str, str]) -> str | None:
    """Returns the passage that a question's label means: its title, also with a kind or a profession before it."""
    for title, text in known.items():
        if _bare(label) in _labels(title, text):
            return text
    return None


def _labels(title: str, text: str) -> set[str]:
    match = re.fullmatch(r"(.+) \((.+)\)", title)
    if match:
        return {f"{match[2]} {_bare(match[1])}", f"{match[2]} {match[1]}".lower()}
    job = re.search(_FACTS["person_job"], text) if "studied at" in text else None
    kinds = [job[1]] if job else ["film", "novel"]
    return {_bare(title), *(f"{kind} {title}".lower() for kind in kinds)}


def _bare(label: str) -> str:
    return re.sub("^the ", "", label.lower())


def _read(names: Sequence[str], text: str) -> _Fact:
    """Returns the first of the facts that the passage states; ``unknown`` if it states none."""
    found = (re.search(_FACTS[name], text) for name in names)
    facts = (_Fact(match[match.lastindex or 0], match[0].strip(" .,")) for match in found if match)
    return next(facts, _Fact("unknown", "nothing of it"))


_COMPARISONS = [(_pattern(row[4]), relation) for relation, row in COMPARE.items()]
_BRIDGES = [(_pattern(row[3]), relation) for relation, row in BRIDGE.items()]
_SINGLES = [(_pattern(wording), relation) for relation, row in SINGLE.items() for wording in row[1:3] if wording]

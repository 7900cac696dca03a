"""Reads and checks the file of a bank, schema ``skillbank/1``. One message names all mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from alignopsd_trl.environments.shipped import BENCHMARKS

SCHEMA = "skillbank/1"
GROUPS = ("task", "category", "constraint", "question_shape")
MAX_WORDS = 45
_TAG = re.compile(r"</?\s*[a-zA-Z][^<>]*>")
_Made = TypeVar("_Made")
_WRITE = {
    "schema": f"write {SCHEMA!r}",
    "environment": "write the environment's name, such as 'maze'",
    "version": "write a string that you change with the content, such as '1'",
    "language": "write 'en'",
    "general": "write a list of skills that help with any task, at least one",
    "task_types": "write a list of kinds of tasks, at least one, each with skills of its own",
    "mistakes": "write a list of mistakes, [] if there are none",
    "id": "write a name, a letter (g general, t type, m mistake) and two digits, such as 'maze-g01'",
    "title": "write a few words",
    "text": f"write what to do, in at most {MAX_WORDS} words",
    "when": "write when it applies, in a few words",
    "instead": f"write what to do instead, in at most {MAX_WORDS} words",
    "applies_to": "write a list of keys of task types, or ['*']",
    "key": "write a short name of the kind, unique in the file",
    "group": f"write one of {', '.join(GROUPS)}",
    "label": "write its name in words",
    "description": "write a sentence that an encoder can compare with a task's text",
    "match": "write {}, or lists under 'keywords', 'task_key' or 'data_sources'",
    "skills": "write a list of skills, at least one",
}
"""What to write where a field is missing."""


class SkillBankError(ValueError):
    """A bank that breaks its schema. The message names file, record, field and remedy."""


@dataclass(frozen=True)
class Skill:
    id: str
    title: str
    text: str
    when: str

    @property
    def line(self) -> str:
        return f"- {self.title}: {self.text}"


@dataclass(frozen=True)
class Mistake:
    id: str
    title: str
    text: str
    instead: str
    applies_to: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"- {self.text} {self.instead}"


@dataclass(frozen=True)
class Match:
    """Exact hints of a task type."""

    task_key: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    data_sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskType:
    key: str
    group: str
    label: str
    description: str
    match: Match
    skills: tuple[Skill, ...]


@dataclass(frozen=True)
class Content:
    """A whole bank, checked."""

    environment: str
    version: str
    language: str
    general: tuple[Skill, ...]
    task_types: tuple[TaskType, ...]
    mistakes: tuple[Mistake, ...]


def read_content(content: Any, source: str) -> Content:
    """The records of a bank.

    Args:
        content: the parsed JSON.
        source: named at the front of each message.

    Raises:
        SkillBankError: with a line for everything that is missing or wrong.
    """
    reader = _Reader(source)
    found = reader.bank(content)
    if reader.problems:
        raise SkillBankError("\n".join(reader.problems))
    return found


class _Reader:
    """Builds records, and collects what is missing or wrong in ``problems``; such a field is left empty."""

    def __init__(self, source: str):
        self.source = source
        self.problems: list[str] = []
        self.prefix = "[a-z]+"
        self.ids: set[str] = set()
        self.keys: set[str] = set()

    def bank(self, content: Any) -> Content:
        entry = self.record(content, ("schema", *(one.name for one in fields(Content))), "bank")
        known = BENCHMARKS.get(str(entry.get("environment")))
        self.prefix = known.skill_prefix if known else self.prefix
        environment, version, language = (
            self.text(entry, "bank", name) for name in ("environment", "version", "language")
        )
        general = self.skills(entry, "bank", "general", "g")
        task_types = self.several(entry, "bank", "task_types", self.task_type)
        mistakes = self.several(entry, "bank", "mistakes", self.mistake, empty=True)
        if entry.get("schema", SCHEMA) != SCHEMA:
            self.refuse("bank", "schema", f"is {entry['schema']!r}", f"write {SCHEMA!r}")
        return Content(environment, version, language, general, task_types, mistakes)

    def refuse(self, record: str, field: str, problem: str, remedy: str) -> None:
        self.problems.append(f"{self.source}: {record}: field {field!r} {problem}; {remedy}")

    def record(self, value: Any, names: Sequence[str], record: str, optional: bool = False) -> Mapping[str, Any]:
        known = ", ".join(names)
        if not isinstance(value, dict):
            self.problems.append(f"{self.source}: {record} is a {type(value).__name__}; make it an object with {known}")
            return {}
        for name in names:
            if name not in value and not optional:
                self.refuse(record, name, "is missing", _WRITE[name])
        for name in value:
            if name not in names:
                self.refuse(record, name, "is unknown", f"remove it; known are {known}")
        return {name: value[name] for name in names if name in value}

    def text(self, entry: Mapping[str, Any], record: str, field: str, words: int | None = None) -> str:
        return self.checked_text(entry[field], record, field, words) if field in entry else ""

    def checked_text(self, value: Any, record: str, field: str, words: int | None = None) -> str:
        if not isinstance(value, str) or not value.strip():
            self.refuse(record, field, f"is {value!r}", "write a text")
            return ""
        if found := _TAG.search(value):
            self.refuse(record, field, f"contains the tag {found.group()!r}", "write it without angle brackets")
        if words is not None and len(value.split()) > words:
            self.refuse(record, field, f"has {len(value.split())} words", f"shorten it to {words}")
        return value

    def entries(self, entry: Mapping[str, Any], record: str, field: str, empty: bool = False) -> list[Any]:
        value = entry.get(field, [])
        if field in entry and (not isinstance(value, list) or not (value or empty)):
            self.refuse(record, field, f"is {value!r}", "write a list" + ("" if empty else " with at least one entry"))
            return []
        return value

    def strings(self, entry: Mapping[str, Any], record: str, field: str, empty: bool = False) -> tuple[str, ...]:
        return tuple(self.checked_text(one, record, field) for one in self.entries(entry, record, field, empty))

    def several(
        self, entry: Mapping[str, Any], record: str, field: str, read: Callable[[Any, str], _Made], **options: Any
    ) -> tuple[_Made, ...]:
        place = field if record == "bank" else f"{record}.{field}"
        found = self.entries(entry, record, field, **options)
        return tuple(read(one, f"{place}[{number}]") for number, one in enumerate(found))

    def skills(self, entry: Mapping[str, Any], record: str, field: str, letter: str) -> tuple[Skill, ...]:
        return self.several(entry, record, field, lambda value, place: self.skill(value, place, letter))

    def skill(self, value: Any, record: str, letter: str) -> Skill:
        entry = self.record(value, [field.name for field in fields(Skill)], record)
        identity = self.identity(entry, record, letter)
        title, when = (self.text(entry, identity, name) for name in ("title", "when"))
        return Skill(identity, title, self.text(entry, identity, "text", MAX_WORDS), when)

    def task_type(self, value: Any, record: str) -> TaskType:
        entry = self.record(value, [field.name for field in fields(TaskType)], record)
        key, label, description = (self.text(entry, record, name) for name in ("key", "label", "description"))
        if key in self.keys or key == "*":
            self.refuse(record, "key", f"is {key!r}, which is taken", "give every task type its own key")
        self.keys |= {key} - {""}
        own = key or record
        if entry.get("group", GROUPS[0]) not in GROUPS:
            self.refuse(own, "group", f"is {entry['group']!r}", f"use one of {', '.join(GROUPS)}")
        skills = self.skills(entry, own, "skills", "t")
        return TaskType(
            key, entry.get("group", ""), label, description, self.match(entry.get("match", {}), own), skills
        )

    def match(self, value: Any, key: str) -> Match:
        record = f"{key}.match"
        hints = self.record(value, [field.name for field in fields(Match)], record, optional=True)
        return Match(**{name: self.strings(hints, record, name, empty=True) for name in hints})

    def mistake(self, value: Any, record: str) -> Mistake:
        entry = self.record(value, [field.name for field in fields(Mistake)], record)
        identity = self.identity(entry, record, "m")
        title = self.text(entry, identity, "title")
        text, instead = (self.text(entry, identity, name, MAX_WORDS) for name in ("text", "instead"))
        applies = self.strings(entry, identity, "applies_to")
        for key in filter(None, applies):
            if key not in self.keys and key != "*":
                known = " or ".join(["'*'", *([", ".join(sorted(self.keys))] if self.keys else [])])
                self.refuse(identity, "applies_to", f"names {key!r}, no task type", f"use {known}")
        return Mistake(identity, title, text, instead, applies)

    def identity(self, entry: Mapping[str, Any], record: str, letter: str) -> str:
        """The record's identifier, or its place where it has no good one."""
        identity = self.text(entry, record, "id")
        if not identity:
            return record
        if not re.fullmatch(rf"{self.prefix}-{letter}\d\d", identity):
            stem = self.prefix if self.prefix.isalpha() else "small letters, "
            self.refuse(record, "id", f"is {identity!r}", f"write {stem}-{letter} and two digits")
        if identity in self.ids:
            self.refuse(record, "id", f"is {identity!r}, which is taken", "take the next free number")
        self.ids.add(identity)
        return identity

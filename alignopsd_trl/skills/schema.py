"""The file of a bank, schema ``skillbank/1``: its records, and every mistake in it in one message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

SCHEMA = "skillbank/1"
GROUPS = ("task", "category", "constraint", "question_shape")
MAX_WORDS = 45
_PREFIXES = {"alfworld": "alf", "webshop": "web", "searchqa": "sqa"}
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


def _problem(source: str, record: str, field: str, problem: str, remedy: str) -> str:
    return f"{source}: {record}: field {field!r} {problem}; {remedy}"


def _refuse(source: str, record: str, field: str, problem: str, remedy: str) -> None:
    raise SkillBankError(_problem(source, record, field, problem, remedy))


def _all(parts: Iterable[Callable[[], _Made]]) -> tuple[_Made, ...]:
    """What the parts make, or one error with the messages of all that can't."""
    made, problems = [], []
    for part in parts:
        try:
            made.append(part())
        except SkillBankError as error:
            problems.append(str(error))
    if problems:
        raise SkillBankError("\n".join(problems))
    return tuple(made)


def _record(value: Any, names: Sequence[str], source: str, record: str, optional: bool = False) -> dict[str, Any]:
    if not isinstance(value, dict):
        known = ", ".join(names)
        raise SkillBankError(f"{source}: {record} is a {type(value).__name__}; make it an object with {known}")
    missing = [] if optional else [name for name in names if name not in value]
    problems = [_problem(source, record, name, "is missing", _WRITE[name]) for name in missing]
    known = f"remove it; known are {', '.join(names)}"
    problems += [_problem(source, record, name, "is unknown", known) for name in value if name not in names]
    if problems:
        raise SkillBankError("\n".join(problems))
    return value


def _text(value: Any, source: str, record: str, field: str, words: int | None = None) -> str:
    if not isinstance(value, str) or not value.strip():
        _refuse(source, record, field, f"is {value!r}", "write a text")
    if found := _TAG.search(value):
        _refuse(source, record, field, f"contains the tag {found.group()!r}", "write it without angle brackets")
    if words is not None and len(value.split()) > words:
        _refuse(source, record, field, f"has {len(value.split())} words", f"shorten it to {words}")
    return value


def _list(value: Any, source: str, record: str, field: str, empty: bool = False) -> list[Any]:
    if not isinstance(value, list) or not (value or empty):
        _refuse(source, record, field, f"is {value!r}", "write a list" + ("" if empty else " with at least one entry"))
    return value


def _strings(value: Any, source: str, record: str, field: str, empty: bool = False) -> tuple[str, ...]:
    return tuple(_text(entry, source, record, field) for entry in _list(value, source, record, field, empty))


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
    bank = _record(content, ("schema", *(one.name for one in fields(Content))), source, "bank")
    check = _Check(source, _PREFIXES.get(str(bank["environment"]), "[a-z]+"))
    parts = [partial(_text, bank[name], source, "bank", name) for name in ("environment", "version", "language")]
    parts += [
        lambda: check.skills(bank["general"], "bank", "general", "g"),
        lambda: check.several(bank["task_types"], "task_types", check.task_type),
        lambda: check.several(bank["mistakes"], "mistakes", check.mistake, empty=True),
        lambda: check.schema(bank["schema"]),
    ]
    return Content(*_all(parts)[:6])


class _Check:
    """Builds records and remembers the identifiers and type keys that are taken."""

    def __init__(self, source: str, prefix: str):
        self.source = source
        self.prefix = prefix
        self.ids: set[str] = set()
        self.keys: set[str] = set()

    def schema(self, value: Any) -> None:
        if value != SCHEMA:
            _refuse(self.source, "bank", "schema", f"is {value!r}", f"write {SCHEMA!r}")

    def several(self, value: Any, field: str, check: Callable[[Any, str], _Made], **options: Any) -> tuple[_Made, ...]:
        entries = _list(value, self.source, "bank", field, **options)
        return _all(partial(check, entry, f"{field}[{number}]") for number, entry in enumerate(entries))

    def skills(self, value: Any, record: str, field: str, letter: str) -> tuple[Skill, ...]:
        entries = _list(value, self.source, record, field)
        place = field if record == "bank" else f"{record}.{field}"
        return _all(partial(self.skill, entry, f"{place}[{n}]", letter) for n, entry in enumerate(entries))

    def skill(self, value: Any, record: str, letter: str) -> Skill:
        entry = _record(value, [field.name for field in fields(Skill)], self.source, record)
        identity = self.identity(entry, record, letter)
        title, when = (_text(entry[name], self.source, identity, name) for name in ("title", "when"))
        return Skill(identity, title, _text(entry["text"], self.source, identity, "text", MAX_WORDS), when)

    def task_type(self, value: Any, record: str) -> TaskType:
        entry = _record(value, [field.name for field in fields(TaskType)], self.source, record)
        key, label, description = (
            _text(entry[name], self.source, record, name) for name in ("key", "label", "description")
        )
        if key in self.keys or key == "*":
            _refuse(self.source, record, "key", f"is {key!r}, which is taken", "give every task type its own key")
        self.keys.add(key)
        if entry["group"] not in GROUPS:
            _refuse(self.source, key, "group", f"is {entry['group']!r}", f"use one of {', '.join(GROUPS)}")
        skills = self.skills(entry["skills"], key, "skills", "t")
        return TaskType(key, entry["group"], label, description, self.match(entry["match"], key), skills)

    def match(self, value: Any, key: str) -> Match:
        record = f"{key}.match"
        hints = _record(value, [field.name for field in fields(Match)], self.source, record, optional=True)
        return Match(**{name: _strings(hint, self.source, record, name, empty=True) for name, hint in hints.items()})

    def mistake(self, value: Any, record: str) -> Mistake:
        entry = _record(value, [field.name for field in fields(Mistake)], self.source, record)
        identity = self.identity(entry, record, "m")
        title = _text(entry["title"], self.source, identity, "title")
        text, instead = (_text(entry[name], self.source, identity, name, MAX_WORDS) for name in ("text", "instead"))
        applies = _strings(entry["applies_to"], self.source, identity, "applies_to")
        for key in applies:
            if key not in self.keys and key != "*":
                known = ", ".join(sorted(self.keys))
                _refuse(self.source, identity, "applies_to", f"names {key!r}, no task type", f"use '*' or {known}")
        return Mistake(identity, title, text, instead, applies)

    def identity(self, entry: dict[str, Any], record: str, letter: str) -> str:
        identity = _text(entry["id"], self.source, record, "id")
        if not re.fullmatch(rf"{self.prefix}-{letter}\d\d", identity):
            stem = self.prefix if self.prefix.isalpha() else "small letters, "
            form = f"{stem}-{letter} and two digits"
            _refuse(self.source, record, "id", f"is {identity!r}", f"write {form}")
        if identity in self.ids:
            _refuse(self.source, record, "id", f"is {identity!r}, which is taken", "take the next free number")
        self.ids.add(identity)
        return identity

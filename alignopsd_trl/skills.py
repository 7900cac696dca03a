"""SkillBank: the privileged information of the teacher view.

    bank = SkillBank.load("webshop", encoder)
    found = bank.retrieve(task_text)                      # once per task, at reset
    block = render(found, count_tokens, skill_budget(max_prompt_tokens))
    block.text                                            # fills the {skill_context} slot

A bank is one JSON file of schema ``skillbank/1``: general skills, task types with their own skills, and mistakes. What
is retrieved depends on the task text (and two optional hints of its data set) and on nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from alignopsd_trl.encoder import Encoder

SCHEMA = "skillbank/1"
GROUPS = ("task", "category", "constraint", "question_shape")
MAX_WORDS = 45
MAX_CONSTRAINTS = 2
# Shapes that a question of any source may have: a data source never rules them out, and is no evidence for them.
ANY_SOURCE = ("temporal", "numeric", "entity_disambiguation")
_PREFIXES = {"alfworld": "alf", "webshop": "web", "searchqa": "sqa"}
_FOLDER = Path(__file__).parent / "data" / "skills"
_TAG = re.compile(r"</?\s*[a-zA-Z][^<>]*>")


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
class Retrieved:
    """What one task gets, best first. ``scores`` are the cosines of ``skills``, rounded to 6 decimals, or 0 where the
    order is the file's. General skills and mistakes are always in file order."""

    type_keys: tuple[str, ...]
    skills: tuple[Skill, ...]
    scores: tuple[float, ...]
    general: tuple[Skill, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Identifiers in the order of rank: type skills, general skills, mistakes."""
        return tuple(item.id for item in (*self.skills, *self.general, *self.mistakes))


@dataclass(frozen=True)
class Rendered:
    """``text`` for the prompt, without a final line break; the ``ids`` that are in it; how many items did not fit."""

    text: str
    ids: tuple[str, ...]
    dropped: int


def skill_budget(max_prompt_tokens: int) -> int:
    """Tokens that the skill block may take of a prompt: a quarter, at most 512."""
    return min(512, max_prompt_tokens // 4)


def render(retrieved: Retrieved, count_tokens: Callable[[str], int], budget: int) -> Rendered:
    """The block that goes into the prompt: whole items within ``budget`` tokens.

    Items go in the reverse order of their rank: mistakes, general skills, type skills. The best type skill stays
    whatever the budget.
    """
    sections = [list(retrieved.skills), list(retrieved.general), list(retrieved.mistakes)]
    total = sum(map(len, sections))
    while count_tokens(_block(*sections)) > budget and sum(map(len, sections)) > 1:
        next(section for section in reversed(sections) if section).pop()
    ids = tuple(item.id for section in sections for item in section)
    return Rendered(_block(*sections), ids, total - len(ids))


def _block(skills: Sequence[Skill], general: Sequence[Skill], mistakes: Sequence[Mistake]) -> str:
    lines = ["Guidance for this kind of task:", *(item.line for item in (*skills, *general))]
    if mistakes:
        lines += ["Mistakes to avoid:", *(item.line for item in mistakes)]
    return "\n".join(lines)


class SkillBank:
    """A validated bank and its rule of retrieval.

    Attributes:
        environment, version, language: of the file.
        checksum: first 16 hex digits of the sha256 over its content; with ``version`` it goes into the results.
        general, task_types, mistakes: the content, in file order.
        encoder: scores types and skills. Without one, hints, whole-word keywords and file order decide. Keywords also
            come before the cosines of an encoder that is not `Encoder.semantic`: on 206 requests of the embedded
            shop they find the product's category every time, lexical cosines in one of four.
    """

    def __init__(
        self,
        content: dict[str, Any],
        source: str,
        encoder: Encoder | None = None,
        n_general: int = 4,
        n_mistakes: int = 4,
        constraint_threshold: float = 0.3,
    ):
        self.environment, self.version, self.language = _header(content, source)
        self.general, self.task_types, self.mistakes = _content(content, source, _PREFIXES.get(self.environment))
        self.checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        self.encoder = encoder
        self.n_general, self.n_mistakes, self.constraint_threshold = n_general, n_mistakes, constraint_threshold
        self._cached = lru_cache(maxsize=65536)(self._retrieve)

    @classmethod
    def load(cls, bank: str | Path | SkillBank, encoder: Encoder | None = None, **options: Any) -> SkillBank:
        """A shipped bank by name, a bank from a file, or a bank that is loaded already (returned as it is).

        Args:
            bank (`str`, `Path` or `SkillBank`): ``webshop``, ``alfworld``, ``searchqa``, or the path of a JSON file.
            encoder (`Encoder`, *optional*): scores types and skills.
            n_general (`int`, *optional*, defaults to 4): general skills of a task.
            n_mistakes (`int`, *optional*, defaults to 4): mistakes of a task; specific ones before those for all.
            constraint_threshold (`float`, *optional*, defaults to 0.3): smallest cosine at which a type of group
                ``constraint`` joins the best type.

        Raises:
            SkillBankError: if there is no such bank, or it breaks the schema ``skillbank/1``.
        """
        if isinstance(bank, SkillBank):
            return bank
        shipped = _FOLDER / f"{bank}.json"
        path = shipped if shipped.is_file() else Path(bank).expanduser()
        if not path.is_file():
            names = ", ".join(sorted(file.stem for file in _FOLDER.glob("*.json")))
            raise SkillBankError(f"skill bank {str(bank)!r} is unknown; use one of {names}, or the path of a JSON file")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SkillBankError(f"{path}: file is no UTF-8 JSON ({error}); correct it there") from error
        return cls(content, str(path), encoder, **options)

    def texts(self) -> Iterator[str]:
        """Every sentence that a block may contain; none of them may occur in a student's prompt."""
        for skill in (*self.general, *(skill for kind in self.task_types for skill in kind.skills)):
            yield skill.text
        for mistake in self.mistakes:
            yield from (mistake.text, mistake.instead)

    def retrieve(self, task_text: str, task_key: str | None = None, data_source: str | None = None) -> Retrieved:
        """The skills of a task. Equal arguments give equal results, in every process and on every device.

        Types: the one that ``task_key`` names; else the best of the candidates that is no constraint, and up to two
        constraints. Skills: all of those types by cosine; then the first general ones; then the mistakes that apply.

        Args:
            task_text: the request alone: goal sentence, shopping request or question. Never an observation.
            task_key: names the type where the environment knows it (ALFWorld's game type).
            data_source: where a question comes from; leaves the types that list it and those of `ANY_SOURCE`.
        """
        return self._cached(task_text, task_key, data_source)

    def _retrieve(self, task_text: str, task_key: str | None, data_source: str | None) -> Retrieved:
        types = self._types(task_text, task_key, data_source)
        skills = [skill for kind in types for skill in kind.skills]
        ranked = _ranked(skills, self._cosines(task_text, [f"{s.title}. {s.text} {s.when}" for s in skills]))
        keys = [kind.key for kind in types]
        specific = [mistake for mistake in self.mistakes if set(mistake.applies_to) & set(keys)]
        always = [mistake for mistake in self.mistakes if "*" in mistake.applies_to and mistake not in specific]
        return Retrieved(
            type_keys=tuple(keys),
            skills=tuple(skill for skill, _ in ranked),
            scores=tuple(score for _, score in ranked),
            general=self.general[: self.n_general],
            mistakes=tuple([*specific, *always][: self.n_mistakes]),
        )

    def _types(self, task_text: str, task_key: str | None, data_source: str | None) -> list[TaskType]:
        for kind in self.task_types:
            if task_key is not None and task_key in (kind.key, *kind.match.task_key):
                return [kind]
        listed = [kind for kind in self.task_types if data_source in kind.match.data_sources]
        candidates = [kind for kind in self.task_types if not listed or kind in listed or kind.key in ANY_SOURCE]
        if self.encoder is None and listed:
            return [min(listed, key=lambda kind: kind.key in ANY_SOURCE)]
        if self.encoder is None or not self.encoder.semantic:
            hits = [float(sum(_occurs(word, task_text) for word in kind.match.keywords)) for kind in candidates]
            found = [(kind, hit) for kind, hit in _ranked(candidates, hits) if hit]
            if found or self.encoder is None:
                return _best(found, threshold=1.0) or [self.task_types[0]]
        scores = self._cosines(task_text, [f"{kind.label}. {kind.description}" for kind in candidates])
        return _best(_ranked(candidates, scores), self.constraint_threshold)

    def _cosines(self, task_text: str, texts: list[str]) -> list[float]:
        """Every text alone through the encoder, so that no batch can move a cosine; rounded to 6 decimals."""
        if self.encoder is None:
            return [0.0] * len(texts)
        query = self._vector(" ".join(task_text.split()))
        return [round(float(self._bank_vector(text) @ query), 6) + 0.0 for text in texts]

    def _vector(self, text: str) -> torch.Tensor:
        return self.encoder([text])[0].double().cpu()

    @cached_property
    def _bank_vector(self) -> Callable[[str], torch.Tensor]:
        return lru_cache(maxsize=None)(self._vector)


def _ranked(items: Sequence[Any], scores: Sequence[float]) -> list[tuple[Any, float]]:
    """Falling score; Python's sort is stable, so ties keep the order of the file."""
    return sorted(zip(items, scores, strict=True), key=lambda pair: -pair[1])


def _best(ranked: list[tuple[TaskType, float]], threshold: float) -> list[TaskType]:
    """The best type that is no constraint, then the best constraints from ``threshold`` on."""
    main = [kind for kind, _ in ranked if kind.group != "constraint"]
    constraints = [kind for kind, score in ranked if kind.group == "constraint" and score >= threshold]
    return [*main[:1], *constraints[:MAX_CONSTRAINTS]]


def _occurs(keyword: str, text: str) -> bool:
    """As whole words, in any case; a regular plural is the same word."""
    return re.search(rf"(?<!\w){re.escape(keyword)}(?:e?s)?(?!\w)", text, re.IGNORECASE) is not None


# Validation: every check raises the one error that names file, record, field and remedy.


def _refuse(source: str, record: str, field: str, problem: str, remedy: str) -> None:
    raise SkillBankError(f"{source}: {record}: field {field!r} {problem}; {remedy}")


def _record(value: Any, names: Sequence[str], source: str, record: str, optional: bool = False) -> dict[str, Any]:
    if not isinstance(value, dict):
        known = ", ".join(names)
        raise SkillBankError(f"{source}: {record} is a {type(value).__name__}; make it an object with {known}")
    for name in names:
        if name not in value and not optional:
            _refuse(source, record, name, "is missing", "add it")
    for name in value:
        if name not in names:
            _refuse(source, record, name, "is unknown", f"remove it; known are {', '.join(names)}")
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


def _header(content: Any, source: str) -> tuple[str, str, str]:
    names = ("schema", "environment", "version", "language", "general", "task_types", "mistakes")
    bank = _record(content, names, source, "bank")
    if bank["schema"] != SCHEMA:
        _refuse(source, "bank", "schema", f"is {bank['schema']!r}", f"write {SCHEMA!r}")
    environment, version, language = (_text(bank[name], source, "bank", name) for name in names[1:4])
    return environment, version, language


def _content(
    content: dict[str, Any], source: str, prefix: str | None
) -> tuple[tuple[Skill, ...], tuple[TaskType, ...], tuple[Mistake, ...]]:
    check = _Check(source, prefix)
    general = check.skills(content["general"], "bank", "general", "g")
    types = _list(content["task_types"], source, "bank", "task_types")
    kinds = tuple(check.task_type(value, f"task_types[{number}]") for number, value in enumerate(types))
    mistakes = _list(content["mistakes"], source, "bank", "mistakes", empty=True)
    return general, kinds, tuple(check.mistake(value, f"mistakes[{n}]") for n, value in enumerate(mistakes))


class _Check:
    """Builds records and remembers the identifiers and type keys that are taken."""

    def __init__(self, source: str, prefix: str | None):
        self.source = source
        self.prefix = prefix or "[a-z]+"
        self.ids: set[str] = set()
        self.keys: set[str] = set()

    def skills(self, value: Any, record: str, field: str, letter: str) -> tuple[Skill, ...]:
        entries = _list(value, self.source, record, field)
        place = field if record == "bank" else f"{record}.{field}"
        return tuple(self.skill(entry, f"{place}[{number}]", letter) for number, entry in enumerate(entries))

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
            form = f"{self.prefix}-{letter} and two digits"
            _refuse(self.source, record, "id", f"is {identity!r}", f"write {form}")
        if identity in self.ids:
            _refuse(self.source, record, "id", f"is {identity!r}, which is taken", "take the next free number")
        self.ids.add(identity)
        return identity

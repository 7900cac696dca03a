"""Reads and checks the file of a bank, schema ``skillbank/1``. One message names all mistakes."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ValidationInfo

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.environments.shipped import BENCHMARKS

MAX_WORDS = 45
NAME = "[a-z][a-z0-9_]*"
"""Of a task, and so of its skills."""
_TAG = re.compile(r"</?\s*[a-zA-Z][^<>]*>")


class SkillBankError(UserError):
    """Raised for a bank that breaks its schema. The message names file, record, field and remedy."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"is {value!r}; write a text")
    if found := _TAG.search(value):
        raise ValueError(f"contains the tag {found.group()!r}; write it without angle brackets")
    return value


def _short(value: str) -> str:
    if len(value.split()) > MAX_WORDS:
        raise ValueError(f"has {len(value.split())} words; shorten it to {MAX_WORDS}")
    return value


def _some(value: tuple) -> tuple:
    if not value:
        raise ValueError("is []; write a list with at least one entry")
    return value


Text = Annotated[str, BeforeValidator(_text)]
Short = Annotated[Text, AfterValidator(_short)]
Some = AfterValidator(_some)


class _Record(BaseModel):
    """A record of a bank. A field's description says what to write if the field is missing or of the wrong kind."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Named(_Record):
    letter: ClassVar[str]
    id: Text = Field(description="a name, a letter (g general, t type, m mistake) and two digits, such as 'maze-g01'")

    @field_validator("id")
    @classmethod
    def _free(cls, value: str, info: ValidationInfo[Any]) -> str:
        prefix = info.context["prefix"]
        if not re.fullmatch(rf"{prefix or NAME}-{cls.letter}\d\d", value):
            raise ValueError(f"is {value!r}; write {prefix or 'a name in small letters, '}-{cls.letter} and two digits")
        if value in info.context["ids"]:
            raise ValueError(f"is {value!r}, which is taken; take the next free number")
        info.context["ids"].add(value)
        return value


class Skill(_Named):
    title: Text = Field(description="a few words")
    text: Short = Field(description=f"what to do, in at most {MAX_WORDS} words")
    when: Text = Field(description="when it applies, in a few words")

    @property
    def line(self) -> str:
        return f"- {self.title}: {self.text}"


class GeneralSkill(Skill):
    letter = "g"


class TypeSkill(Skill):
    letter = "t"


class Match(_Record):
    """Exact hints of a task type."""

    task_key: tuple[Text, ...] = Field((), description="a list of texts")
    keywords: tuple[Text, ...] = Field((), description="a list of texts")
    data_sources: tuple[Text, ...] = Field((), description="a list of texts")


class TaskType(_Record):
    key: Text = Field(description="a short name of the kind, unique in the file")
    group: Literal["task", "category", "constraint", "question_shape"] = Field(
        description="one of task, category, constraint, question_shape"
    )
    label: Text = Field(description="its name in words")
    description: Text = Field(description="a sentence that an encoder can compare with a task's text")
    skills: Annotated[tuple[TypeSkill, ...], Some] = Field(description="a list of skills, at least one")
    match: Match = Field(description="{}, or lists under 'keywords', 'task_key' or 'data_sources'")

    @field_validator("key")
    @classmethod
    def _new(cls, value: str, info: ValidationInfo[Any]) -> str:
        if value in info.context["keys"]:
            raise ValueError(f"is {value!r}, which is taken; give every task type its own key")
        info.context["keys"].append(value)
        return value


class Mistake(_Named):
    letter = "m"
    title: Text = Field(description="a few words")
    text: Short = Field(description=f"what not to do, in at most {MAX_WORDS} words")
    instead: Short = Field(description=f"what to do instead, in at most {MAX_WORDS} words")
    applies_to: Annotated[tuple[Text, ...], Some] = Field(description="a list of keys of task types, or ['*']")

    @property
    def line(self) -> str:
        return f"- {self.text} {self.instead}"

    @field_validator("applies_to")
    @classmethod
    def _known(cls, value: tuple[str, ...], info: ValidationInfo[Any]) -> tuple[str, ...]:
        if unknown := [key for key in value if key not in info.context["keys"]]:
            raise ValueError(f"names {unknown[0]!r}, no task type; use {' or '.join(info.context['keys'])}")
        return value


class Content(_Record):
    """The checked content of a bank."""

    format: Literal["skillbank/1"] = Field(alias="schema", description="'skillbank/1'")
    environment: Text = Field(description="the environment's name, such as 'maze'")
    version: Text = Field(description="a string that you change with the content, such as '1'")
    language: Text = Field(description="'en'")
    general: Annotated[tuple[GeneralSkill, ...], Some] = Field(description="a list of skills for any task")
    task_types: Annotated[tuple[TaskType, ...], Some] = Field(description="a list of kinds of tasks, each with skills")
    mistakes: tuple[Mistake, ...] = Field(description="a list of mistakes, [] if there are none")


def read_content(content: Any, source: str) -> Content:
    """Checks the content of a bank, and returns its records. Raises `SkillBankError` if it breaks the schema; the
    message has one line per missing or wrong item."""
    known = BENCHMARKS.get(str(content.get("environment"))) if isinstance(content, dict) else None
    context = {"prefix": known.skill_prefix if known else "", "ids": set(), "keys": ["*"]}
    try:
        return Content.model_validate(content, context=context)
    except ValidationError as error:
        found = [_problem(one, content) for one in error.errors()]
    order = list(dict.fromkeys(place for place, _, _ in found))
    found.sort(key=lambda one: (order.index(one[0]), one[1]))
    raise SkillBankError("\n".join(f"{source}: {line}" for _, _, line in found))


def _problem(error: ErrorDetails, content: Any) -> tuple[str, bool, str]:
    """Returns the record's place in the file, whether all its fields are known, and the line of the message."""
    kind, path, value = error["type"], error["loc"], error["input"]
    model, place, name, field = Content, "", "", ""
    models = {"general": GeneralSkill, "task_types": TaskType, "skills": TypeSkill, "match": Match, "mistakes": Mistake}
    for at, step in enumerate(path):
        if (at + 1 == len(path) and kind != "model_type") or not (isinstance(step, int) or step in models):
            field = str(step)
            break
        model, content = models.get(step, model), content[step]
        place = f"{name}[{step}]" if isinstance(step, int) else f"{name}.{step}".strip(".")
        own = (content.get("key") or content.get("id")) if isinstance(content, dict) else None
        name = own if isinstance(own, str) and own.strip() else place
    known = {one.alias or key: one.description for key, one in model.model_fields.items()}
    place, name = place or "bank", name or "bank"
    if kind == "model_type":
        return place, True, f"{place} is a {type(value).__name__}; make it an object with {', '.join(known)}"
    if kind == "extra_forbidden":
        return place, False, f"{place}: field {field!r} is unknown; remove it; known are {', '.join(known)}"
    if kind == "missing":
        return place, False, f"{place}: field {field!r} is missing; write {known[field]}"
    problem = str(error["ctx"]["error"]) if kind == "value_error" else f"is {value!r}; write {known[field]}"
    return place, True, f"{place if field in ('id', 'key') else name}: field {field!r} {problem}"

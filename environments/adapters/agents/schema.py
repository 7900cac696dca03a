"""Checks requests whole, before anything of them is used: by the fields of OpenAI's API that are read here.

A field that is not read may hold anything. Values stay as they came: a checked request is the caller's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from alignopsd_trl.environments.adapters.agents.refusal import Refused

DEEPEST = 64  # levels of lists and objects in a request
CODES = {"missing": "missing_required_parameter", "literal_error": "invalid_value"}


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


Name = Annotated[str, Field(min_length=1)]
Tokens = Annotated[int, Field(ge=1, le=2**31)]
Objects = dict[str, Any]


class _Block(_Part):
    type: str
    text: str = ""


Content = str | list[_Block]


class _Written(_Part):
    """A call's function; ``arguments`` as text, or as an object from those who parsed it."""

    name: Name
    arguments: str | Objects | None = None


class _Asked(_Part):
    function: _Written

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, given: Any) -> Any:
        return {"function": given} if isinstance(given, Mapping) and "function" not in given else given


class _Message(_Part):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Asked] | None = None


class _Parameters(_Part):
    """The levels of a JSON schema that the parsers of calls read."""

    type: str | list[str] | None = None
    properties: dict[str, Objects] | None = None
    required: list[str] | None = None


class _Function(_Part):
    name: Name
    description: str | None = None
    parameters: _Parameters | None = None


class _Tool(_Part):
    type: Literal["function"]
    function: _Function


class _Named(_Part):
    name: Name


class _NamedTool(_Part):
    type: Literal["function"]
    function: _Named


class _Allowed(_Part):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_NamedTool], Field(min_length=1)]


class _Choice(_Part):
    type: Literal["function", "allowed_tools"]
    function: _Named | None = None
    allowed_tools: _Allowed | None = None

    @model_validator(mode="after")
    def _told(self) -> _Choice:
        if getattr(self, self.type) is None:
            raise ValueError(f"{self.type} is missing")
        return self


class _Schema(_Part):
    of: Annotated[Objects, Field(alias="schema")]


class _Format(_Part):
    type: str
    json_schema: _Schema | None = None


class _StreamOptions(_Part):
    include_usage: bool | None = None


class _Sampling(_Part):
    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stream: bool | None = None
    parallel_tool_calls: bool | None = None


class ChatRequest(_Sampling):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Choice | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Name | list[Name] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stream_options: _StreamOptions | None = None
    response_format: _Format | None = None


class _Said(_Part):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class _Called(_Part):
    call_id: Name
    name: Name
    arguments: str


class _Returned(_Part):
    call_id: Name
    output: Content


class _Thought(_Part):
    id: str | None = None
    summary: list[_Block] | None = None
    content: list[_Block] | None = None


class _Reference(_Part):
    id: Name


def kind_of(item: Any) -> str | None:
    """Returns the type of an input item, which messages and references may leave out."""
    if not isinstance(item, Mapping):
        return None
    return str(item.get("type") or ("message" if "role" in item else "item_reference"))


Item = Annotated[
    Annotated[_Said, Tag("message")]
    | Annotated[_Called, Tag("function_call")]
    | Annotated[_Returned, Tag("function_call_output")]
    | Annotated[_Thought, Tag("reasoning")]
    | Annotated[_Reference, Tag("item_reference")],
    Discriminator(kind_of),
]


class _FlatTool(_Function):
    type: Literal["function"]


class _FlatNamed(_Part):
    type: Literal["function"]
    name: Name


class _FlatAllowed(_Part):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_FlatNamed], Field(min_length=1)]


class _TextFormat(_Part):
    type: str
    of: Annotated[Objects | None, Field(alias="schema")] = None


class _Text(_Part):
    format: _TextFormat | None = None


class ResponsesRequest(_Sampling):
    """The body of ``/v1/responses``."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[_FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _FlatNamed | _FlatAllowed | None = None
    max_output_tokens: Tokens | None = None
    text: _Text | None = None
    include: list[str] | None = None
    metadata: Objects | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None


def read(data: bytes) -> dict[str, Any]:
    """Returns a request's JSON.

    Raises:
        Refused: if it is none, or no object.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON that can be read: {error or 'it is too deep'}", "invalid_json") from None
    if not isinstance(body, dict):
        raise Refused(f"the body is {body!r:.80}; send a JSON object", "invalid_json")
    return body


def plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request as JSON would bring it.

    Raises:
        Refused: for what JSON can't hold, levels beyond `DEEPEST`, and lone surrogates, which no tokenizer takes.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, default=_plain)
        text.encode()
    except UnicodeEncodeError as error:
        told = f"the request has the lone surrogate {error.object[error.start]!a}; decode bytes with errors='replace'"
        raise Refused(told) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"the request is no JSON: {error}", "invalid_json") from None
    found = json.loads(text)
    level = [found]
    for _ in range(DEEPEST):
        level = [one for value in level for one in _inside(value)]
    if level:
        raise Refused(f"the request has more than {DEEPEST} levels", "invalid_json")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {value!r:.80}")


def _inside(value: Any) -> Sequence[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def check(kind: type[BaseModel], body: Mapping[str, Any]) -> None:
    """Checks a request.

    Raises:
        Refused: names the field, its value and what it must be.
    """
    try:
        kind.model_validate(body)
    except ValidationError as problem:
        errors = problem.errors(include_url=False, include_context=False)
        error = max(errors, key=lambda one: len(_found(body, one)[0]))  # of the alternative that fits best
        place, value = _found(body, error)
        code = CODES.get(error["type"], "invalid_type" if error["type"].endswith("_type") else "invalid_value")
        told = "is missing" if error["type"] == "missing" else f"is {value!r:.80}: {error['msg']}"
        raise Refused(f"{place} {told}", code, param=place) from None


def _found(value: Any, error: Any) -> tuple[str, Any]:
    """Returns the name of an error's field and its value. Its place names alternatives too, which are left out."""
    name = ""
    *places, last = error["loc"] or ("",)
    for place in [*places, last]:
        try:
            value = value[place]
        except (LookupError, TypeError):
            if place is not last or error["type"] != "missing":
                continue
        name += f"[{place}]" if isinstance(place, int) else f".{place}" if name else str(place)
    return name, value

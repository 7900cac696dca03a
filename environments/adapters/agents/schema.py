"""Checks requests whole, before anything of them is used: by the fields of OpenAI's API that are read here.

`ChatRequest`, `ResponsesRequest` and `MessagesRequest` are the tables of what is read. All other fields but `INERT`
ones are refused, unless their value asks for nothing (`NOTHING`). Values stay as they came: a checked request is the
caller's own.
"""
# ruff: noqa: UP013 (a type a line: the fields of an API are a table)

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Required

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, ValidationError
from typing_extensions import TypedDict  # pydantic takes those of `typing` from Python 3.12 on

from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.rows import DEEPEST, is_deep

CODES = {"missing": "missing_required_parameter", "literal_error": "invalid_value"}

INERT = frozenset(
    "cache_salt client_metadata metadata model priority prompt_cache_key prompt_cache_options prompt_cache_retention "
    "request_id return_token_ids safety_identifier service_tier store stream stream_options usage user".split()
)
"""Fields that change neither prompt nor sample."""
NOTHING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens", "top_logprobs"), (0,)),
    **dict.fromkeys(("background", "logprobs", "echo", "ignore_eos", "use_beam_search"), (False,)),
    **dict.fromkeys(("add_special_tokens", "continue_final_message"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens", "add_generation_prompt"), (True,)),
    **dict.fromkeys(("functions", "stop_token_ids", "bad_words"), ([],)),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "best_of"), (1,)),
    "top_k": (0, -1),
    "logit_bias": ({},),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
"""Values that ask for nothing, of OpenAI's fields and vLLM's that are not read."""

Objects = dict[str, Any]
Name = Annotated[str, Field(min_length=1)]
Tokens = Annotated[int, Field(ge=1, le=2**31)]
Mode = Literal["auto", "required"]
Block = TypedDict("Block", {"type": Required[str], "text": str}, total=False)
Content = str | list[Block]

# Functions: their calls, with arguments as text or as those who parsed them have them; what the parsers of calls read
Written = TypedDict("Written", {"name": Required[str], "arguments": Any}, total=False)
Kinds = str | list[str] | None
Properties = dict[str, Objects] | None
Schema = TypedDict("Schema", {"type": Kinds, "properties": Properties, "required": list[str] | None}, total=False)
Parameters = Schema | None
Function = TypedDict(
    "Function", {"name": Required[Name], "description": str | None, "parameters": Parameters}, total=False
)
Tool = TypedDict("Tool", {"type": Literal["function"], "function": Function})
Named = TypedDict("Named", {"name": Name})
NamedTool = TypedDict("NamedTool", {"type": Literal["function"], "function": Named})
Some = TypedDict("Some", {"mode": Mode, "tools": Annotated[list[NamedTool], Field(min_length=1)]})
Allowed = TypedDict("Allowed", {"type": Literal["allowed_tools"], "allowed_tools": Some})
FlatNamed = TypedDict("FlatNamed", {"type": Literal["function"], "name": Name})
FlatSome = Annotated[list[FlatNamed], Field(min_length=1)]
FlatAllowed = TypedDict("FlatAllowed", {"type": Literal["allowed_tools"], "mode": Mode, "tools": FlatSome})


class FlatTool(Function):
    type: Literal["function"]


# What a response has to be
Formed = TypedDict("Formed", {"schema": Objects})
Format = TypedDict("Format", {"type": Required[str], "json_schema": Formed | None}, total=False)
FlatFormat = TypedDict("FlatFormat", {"type": Required[str], "schema": Objects | None}, total=False)
Text = TypedDict("Text", {"format": FlatFormat | None, "verbosity": str | None}, total=False)
Way = Literal["auto", "standard"] | None
Reasoning = TypedDict("Reasoning", {"effort": str | None, "context": Way, "mode": Way}, total=False)
StreamOptions = TypedDict("StreamOptions", {"include_usage": bool | None}, total=False)

# Input items of responses
Said = TypedDict("Said", {"role": Literal["system", "developer", "user", "assistant"], "content": Content})
Called = TypedDict("Called", {"call_id": Name, "name": str, "arguments": str})
Returned = TypedDict("Returned", {"call_id": Name, "output": Content})
Thought = TypedDict("Thought", {"summary": list[Block] | None, "content": list[Block] | None}, total=False)
Reference = TypedDict("Reference", {"id": Name})


def _whole(call: Any) -> Any:
    """Returns a call of a message; some programs leave out the level ``function``."""
    return {"function": call} if isinstance(call, Mapping) and "function" not in call else call


Asked = TypedDict("Asked", {"function": Required[Written], "id": str | None}, total=False)


def kind_of(item: Any) -> str | None:
    """Returns the type of an input item, which messages and references may leave out."""
    if not isinstance(item, Mapping):
        return None
    return str(item.get("type") or ("message" if "role" in item else "item_reference"))


Item = Annotated[
    Annotated[Said, Tag("message")]
    | Annotated[Called, Tag("function_call")]
    | Annotated[Returned, Tag("function_call_output")]
    | Annotated[Thought, Tag("reasoning")]
    | Annotated[Reference, Tag("item_reference")],
    Discriminator(kind_of),
]


# Blocks and tools of messages
SystemText = TypedDict("SystemText", {"type": Literal["text"], "text": str})
Thinking = TypedDict(
    "Thinking", {"type": Literal["thinking"], "thinking": Required[str], "signature": str}, total=False
)
Use = TypedDict("Use", {"type": Literal["tool_use"], "id": Name, "name": Name, "input": Any})
Result = TypedDict(
    "Result", {"type": Literal["tool_result"], "tool_use_id": Required[Name], "content": Content | None}, total=False
)
Piece = Annotated[SystemText | Thinking | Use | Result, Field(discriminator="type")]
Described = TypedDict(
    "Described", {"name": Required[Name], "description": str | None, "input_schema": Required[Parameters]}, total=False
)
Choice = TypedDict(
    "Choice",
    {
        "type": Required[Literal["auto", "any", "tool", "none"]],
        "name": str,
        "disable_parallel_tool_use": bool | None,
    },
    total=False,
)
Output = TypedDict("Output", {"effort": str | None, "format": FlatFormat | None}, total=False)
Edits = TypedDict("Edits", {"edits": list[Objects] | None}, total=False)


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Annotated[Asked, BeforeValidator(_whole)]] | None = None


class Sampling(BaseModel):
    """What all requests have."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stream: bool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Objects | None = None
    enable_thinking: bool | None = None


class ChatRequest(Sampling):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | Allowed | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Name | list[Name] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None


class Namespace(BaseModel):
    """Functions of a request for responses under one more name."""

    name: Name
    tools: list[FlatTool]


class InBlocks(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str | list[Piece]


class MessagesRequest(Sampling):
    """The body of ``/v1/messages``."""

    messages: Annotated[list[InBlocks], Field(min_length=1)]
    max_tokens: Tokens
    system: str | list[SystemText] | None = None
    tools: list[Described] | None = None
    tool_choice: Choice | None = None
    stop_sequences: list[Name] | None = None
    output_config: Output | None = None
    thinking: Objects | None = None
    context_management: Edits | None = None


class ResponsesRequest(Sampling):
    """The body of ``/v1/responses``."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamed | FlatAllowed | None = None
    max_output_tokens: Tokens | None = None
    text: Text | None = None
    include: list[str] | None = None
    metadata: Objects | None = None
    store: bool | None = None
    truncation: Literal["disabled"] | None = None
    reasoning: Reasoning | None = None


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
    if is_deep(found):
        raise Refused(f"the request has more than {DEEPEST} levels", "invalid_json")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {value!r:.80}")


def check(kind: type[BaseModel], body: Mapping[str, Any]) -> None:
    """Checks a request.

    Raises:
        Refused: names the field, its value and what it must be; also for a field of chat completions alone.
    """
    chats = ChatRequest.model_fields.keys() - kind.model_fields.keys() - {"stream_options"}
    if foreign := sorted(name for name in chats if body.get(name) is not None):
        told = f"{foreign[0]} is a field of chat completions alone"
        raise Refused(told, "unsupported_parameter", param=foreign[0])
    try:
        kind.model_validate(body, strict=True)
    except ValidationError as problem:
        errors = problem.errors(include_url=False, include_context=False)
        error = max(errors, key=lambda one: len(_found(body, one)[0]))  # of the alternative that fits best
        place, value = _found(body, error)
        code = CODES.get(error["type"], "invalid_type" if error["type"].endswith("_type") else "invalid_value")
        wanted = error["msg"].partition(" or instance")[0]
        told = "is missing" if error["type"] == "missing" else f"is {value!r:.80}: {wanted}"
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

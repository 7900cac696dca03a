"""Anthropic's Messages API over chat completions: a request becomes the chat request that says the same, so that both
have the same prompt ids, and its completion becomes a message. What the policy lacks is refused by its name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Body, callable_tools
from alignopsd_trl.environments.adapters.agents.schema import MessagesRequest, check
from alignopsd_trl.environments.adapters.rows import arguments_of

Block = Mapping[str, Any]
Message = dict[str, Any]
USUAL = ("thinking", "context_management")  # fields whose values mostly ask for nothing
OWN = ("messages", "system", "tools", "tool_choice", "stop_sequences", "output_config", *USUAL)
CHOICES = {"any": "required", "auto": "auto", "none": "none"}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
COUNTED = {"max_tokens": 1, "stream": None}
"""Of a request for the number of its tokens: the policy counts them by answering with one."""


def chat_request(body: Body, ignores: bool) -> dict[str, Any]:
    """Returns the chat request that says the same. A result's ``is_error`` is not shown: its text says what is wrong.

    Args:
        ignores: of `Rules`.

    Raises:
        Refused: for what the API has and this policy can't do.
    """
    tools = callable_tools(body, (None, "custom"), ignores)
    check(MessagesRequest, {**body, "tools": tools})
    messages = [*_system(body.get("system")), *_messages(body["messages"])]
    if messages[-1]["role"] == "assistant":
        told = "the last message is the assistant's, and the policy's responses can't be begun; end with the user's"
        raise Refused(told, "unsupported_value", param="messages")
    choice, output = body.get("tool_choice") or {}, body.get("output_config") or {}
    form = output.get("format") or {}
    given = {
        "messages": messages,
        "tools": [_function(one, name="name", description="description", parameters="input_schema") for one in tools],
        "tool_choice": CHOICES.get(choice.get("type")) or (choice and _function(choice, name="name")),
        "stop": body.get("stop_sequences"),
        "reasoning_effort": output.get("effort"),
        "response_format": {"type": form["type"], "json_schema": form} if form else None,
        **{name: body.get(name) for name in USUAL if not _is_usual(body.get(name))},
    }
    single = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    rest = {name: value for name, value in body.items() if name not in OWN}
    return rest | single | {name: value for name, value in given.items() if value}


def _is_usual(value: Any) -> bool:
    """Whether a field leaves prompt and sampling as they are: thinking as the policy does, and a context that keeps all
    of it."""
    kind, edits = (value or {}).get("type"), (value or {}).get("edits") or ()
    return kind in ("adaptive", "disabled", None) and all(one.get("keep") == "all" for one in edits)


def _function(one: Block, **fields: str) -> dict[str, Any]:
    given = {name: one[field] for name, field in fields.items() if one.get(field) is not None}
    return {"type": "function", "function": given}


def _system(system: str | Sequence[Block] | None) -> list[Message]:
    return [{"role": "system", "content": _texts(system)}] if system else []


def _texts(content: str | Sequence[Block] | None) -> str | list[dict[str, Any]]:
    """Returns content as that of a chat message: blocks of text with nothing beside it, such as ``cache_control``."""
    if content is None or isinstance(content, str):
        return content or ""
    return [{"type": one["type"], "text": one.get("text", "")} for one in content] or ""


def _messages(messages: Sequence[Message]) -> list[Message]:
    """Returns messages with calls and their results in messages of their own. The assistant's in a row are one, as the
    policy wrote them."""
    made: list[Message] = []
    for place, one in enumerate(messages):
        content = one["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if one["role"] != "assistant":
            made += _told(one["role"], blocks)
            continue
        if not made or made[-1]["role"] != "assistant":
            made.append({"role": "assistant", "content": ""})
        for number, block in enumerate(blocks):
            _add(made[-1], block, f"messages[{place}].content[{number}]")
    return made


def _told(role: str, blocks: Sequence[Block]) -> Iterator[Message]:
    """Yields the results of calls, then what else is said."""
    others = [one for one in blocks if one["type"] != "tool_result"]
    for one in blocks:
        if one["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": one["tool_use_id"], "content": _texts(one.get("content"))}
    if others or not blocks:
        yield {"role": role, "content": _texts(others)}


def _add(message: Message, block: Block, place: str) -> None:
    """Adds a block to a message of the assistant."""
    if block["type"] == "text":
        message["content"] += block["text"]
    elif block["type"] == "thinking":
        message["reasoning_content"] = message.get("reasoning_content", "") + _thinking(block, place)
    elif block["type"] == "tool_use":
        call = _function({**block, "input": json.dumps(block["input"])}, name="name", arguments="input")
        message["tool_calls"] = [*message.get("tool_calls", ()), {"id": block["id"], **call}]
    else:
        raise Refused(f"{place} is a {block['type']} of the assistant's; results are the user's", param=place)


def _thinking(block: Block, place: str) -> str:
    """Returns the thinking that a signature holds: programs may shorten the text that they show."""
    try:
        return base64.b64decode(block.get("signature") or "", validate=True).decode() or block["thinking"]
    except ValueError:
        told = f"{place}.signature is not of this policy; send thinking back as it came, or leave the block out"
        raise Refused(told, "invalid_signature", param=f"{place}.signature") from None


def message(completion: Mapping[str, Any], stopped: str | None = None) -> dict[str, Any]:
    """Returns the message of a request, whose chat request got a completion.

    Args:
        stopped: the stop sequence that ended it.

    Raises:
        Refused: for a call whose arguments are no object, which a message can't hold. The policy is to blame for it.
    """
    (choice,) = completion["choices"]
    usage = completion["usage"]
    return {
        "id": f"msg_{completion['id'].removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": [*_content(choice["message"])],
        "stop_reason": "stop_sequence" if stopped else REASONS[choice["finish_reason"]],
        "stop_sequence": stopped,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        },
    }


def _content(said: Message) -> Iterator[dict[str, Any]]:
    calls = said.get("tool_calls") or ()
    if thinking := said.get("reasoning_content"):
        signature = base64.b64encode(thinking.encode(errors="replace")).decode()
        yield {"type": "thinking", "thinking": thinking, "signature": signature}
    if said["content"] or not calls:
        yield {"type": "text", "text": said["content"]}
    for one in calls:
        name, given = one["function"]["name"], arguments_of(one["function"]["arguments"])
        if not isinstance(given, dict):
            told = f"the response calls {name!r} with the arguments {given!r:.80}, which are no JSON object"
            raise Refused(told, "tool_use_failed")
        yield {"type": "tool_use", "id": f"toolu_{one['id'].removeprefix('call_')}", "name": name, "input": given}


def events(made: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a message as the events of a stream, each block in one piece."""
    begun = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": made["usage"] | {"output_tokens": 1}}
    yield {"type": "message_start", "message": {**made, **begun}}
    for place, block in enumerate(made["content"]):
        bare = {**block, **{name: type(block[name])() for name in PIECES[block["type"]]}}
        yield {"type": "content_block_start", "index": place, "content_block": bare}
        for name, kind in PIECES[block["type"]].items():
            piece = {"partial_json": json.dumps(block[name])} if name == "input" else {name: block[name]}
            yield {"type": "content_block_delta", "index": place, "delta": {"type": kind, **piece}}
        yield {"type": "content_block_stop", "index": place}
    ended = {name: made[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": made["usage"]}
    yield {"type": "message_stop"}


PIECES = {
    "thinking": {"thinking": "thinking_delta", "signature": "signature_delta"},
    "text": {"text": "text_delta"},
    "tool_use": {"input": "input_json_delta"},
}
"""The fields of a block that a stream brings after it has begun, with the kind of their events."""


def error(refused: Refused) -> dict[str, Any]:
    """Returns an error as this API writes it."""
    kind = ERRORS.get(refused.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(refused)}, "request_id": None}

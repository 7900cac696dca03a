"""OpenAI's Responses API over chat completions: a request becomes the chat request that says the same, so that both
have the same prompt ids, and its completion becomes a response."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.adapters.agents.messages import behind_calls
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Body, callable_tools
from alignopsd_trl.environments.adapters.agents.schema import Namespace, ResponsesRequest, check, kind_of

Item = Mapping[str, Any]
Message = dict[str, Any]
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
ABSENT = {
    "background": "responses are made while their caller waits",
    "conversation": "conversations are not kept; send the items, or use previous_response_id",
    "prompt": "prompts are not kept; send instructions and input",
    "context_management": "nothing is compacted; shorten the input in the agent",
}
"""Fields for what can't be served, with the remedy."""
ECHOED = ("instructions", "metadata", "previous_response_id", "temperature", "top_p", "max_output_tokens", "truncation")
OWN = ("input", "instructions", "text", "include", "store", "tools", "tool_choice", "max_output_tokens", "reasoning")
OWN += ("previous_response_id", "truncation")


def chat_request(body: Body, stored: Mapping[str, Any], ignores: bool = False) -> dict[str, Any]:
    """Returns the chat request that says the same.

    Args:
        stored: messages of the episode's responses and items of their outputs, by id.
        ignores: of `Rules`.

    Raises:
        Refused: for what the API has and this policy can't do.
    """
    absent = next((name for name in ABSENT if body.get(name)), None)
    if absent is not None:
        raise Refused(f"{absent} is not served: {ABSENT[absent]}", "unsupported_parameter", param=absent)
    tools = [*_flat(callable_tools(body, ("function", "namespace"), ignores))]
    check(ResponsesRequest, {**body, "tools": tools})
    rest = {name: value for name, value in body.items() if name not in OWN}
    if LOGPROBS in (body.get("include") or ()):
        rest["logprobs"] = True
    text = body.get("text") or {}
    form = text.get("format") or {}
    given = {
        "messages": _messages(body, stored),
        "tools": [{"type": "function", "function": _without_type(one)} for one in tools],
        "tool_choice": _choice(body.get("tool_choice")),
        "max_completion_tokens": body.get("max_output_tokens"),
        "response_format": {"type": form["type"], "json_schema": form.get("schema") and form} if form else None,
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
        "verbosity": text.get("verbosity"),
    }
    return rest | {name: value for name, value in given.items() if value}


def _flat(tools: Sequence[Item]) -> Iterator[Item]:
    """Yields functions, those of a namespace under both names: chat templates know none."""
    for one in tools:
        if isinstance(one, Mapping) and one.get("type") == "namespace":
            check(Namespace, one)
            yield from ({**inner, "name": _joined(one["name"], inner["name"])} for inner in one["tools"])
        else:
            yield one


def _joined(namespace: Any, name: Any) -> Any:
    """Returns the one name of a function, which chat completions know."""
    return f"{namespace}.{name}" if namespace else name


def _apart(body: Body, name: str) -> dict[str, str]:
    """Returns name and namespace of a function of a request."""
    for one in body.get("tools") or ():
        if one.get("type") == "namespace" and name in [_joined(one["name"], inner["name"]) for inner in one["tools"]]:
            return {"namespace": one["name"], "name": name.removeprefix(_joined(one["name"], ""))}
    return {"name": name}


def _without_type(one: Item) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "type"}


def _choice(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice["type"] == "function":
        return {"type": "function", "function": _without_type(choice)}
    tools = [{"type": "function", "function": _without_type(one)} for one in choice["tools"]]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}}


def _messages(body: Body, stored: Mapping[str, Any]) -> list[Message]:
    """Returns the instructions of this request and the messages of the response that it continues, then its input."""
    earlier = body.get("previous_response_id")
    if earlier and earlier not in stored:
        told = f"the episode has no stored response {earlier!r:.80}"
        raise Refused(told, "previous_response_not_found", 400, "previous_response_id")
    items = body.get("input") or []
    given = [{"role": "user", "content": items}] if isinstance(items, str) else messages_of(items, stored)
    orders = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    messages = behind_calls([*orders, *(stored[earlier] if earlier else []), *given])
    if not messages:
        raise Refused("input is missing", "missing_required_parameter", param="input")
    return messages


def messages_of(items: Sequence[Item], stored: Mapping[str, Any]) -> list[Message]:
    """Returns input items as messages. Thinking, text and calls in a row are one message of the assistant, as the
    policy wrote them."""
    messages: list[Message] = []
    for place, item in enumerate(items):
        if kind_of(item) == "item_reference":
            if item["id"] not in stored:
                told = f"the episode has no item {item['id']!r:.80}"
                raise Refused(told, "invalid_value", 404, f"input[{place}].id")
            item = stored[item["id"]]
        _add(messages, item)
    return messages


def _add(messages: list[Message], item: Item) -> None:
    kind = kind_of(item)
    if kind == "function_call_output":
        output = {"role": "tool", "tool_call_id": item["call_id"], "content": _blocks(item["output"])}
        messages.append(output)
        return
    if kind == "message" and item["role"] != "assistant":
        messages.append({"role": item["role"], "content": _blocks(item["content"])})
        return
    last: Message = _begun(messages, item) or {}
    if not last or (kind != "function_call" and (last.get("content") or last.get("tool_calls"))):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if kind == "reasoning":
        last["reasoning_content"] = last.get("reasoning_content", "") + _thinking(item)
    elif kind == "message":
        last["content"] = _blocks(item["content"])
    else:
        function = {"name": _joined(item.get("namespace"), item["name"]), "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        last["tool_calls"] = [*last.get("tool_calls", ()), call]


def _begun(messages: Sequence[Message], item: Item) -> Message | None:
    """Returns the assistant's message that an item may be a part of: the last one, or, for a call, the one before the
    outputs of calls of the same response, since some programs write each output after its call."""
    outputs = 0
    while outputs < len(messages) and messages[-1 - outputs]["role"] == "tool":
        outputs += 1
    found = messages[-1 - outputs] if outputs < len(messages) else {}
    if found.get("role") != "assistant":
        return None
    responses = {one["id"].rpartition("_")[0] for one in found.get("tool_calls", ())}
    return found if not outputs or item.get("call_id", "").rpartition("_")[0] in responses else None


def _blocks(content: Any) -> Any:
    """Returns content with its texts named as in chat completions; others stay, and are refused there."""
    if isinstance(content, str):
        return content
    texts = ("input_text", "output_text", "text")
    return [{"type": "text", "text": one.get("text", "")} if one["type"] in texts else one for one in content] or ""


def _thinking(item: Item) -> str:
    parts = item.get("content") or item.get("summary") or []
    if parts or not isinstance(item.get("encrypted_content"), str):
        return "".join(one.get("text", "") for one in parts)
    try:
        return base64.b64decode(item["encrypted_content"], validate=True).decode()
    except ValueError:
        raise Refused("encrypted_content is not of this policy", "invalid_encrypted_content") from None


def response(body: Body, completion: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the response of a request, whose chat request got a completion."""
    (choice,) = completion["choices"]
    cut, usage = choice["finish_reason"] == "length", completion["usage"]
    name = completion["id"].removeprefix("chatcmpl-")
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": completion["created"],
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": completion["model"],
        "output": [*_output(body, choice["message"], name, "incomplete" if cut else "completed")],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [{"strict": None, "parameters": None, **one} for one in body.get("tools") or ()],
        "text": body.get("text") or {"format": {"type": "text"}},
        "store": body.get("store") is not False,
        **{name: body.get(name) for name in ECHOED},
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _output(body: Body, message: Item, name: str, status: str) -> Iterator[dict[str, Any]]:
    if thinking := message.get("reasoning_content"):
        hidden = ENCRYPTED in (body.get("include") or ())
        sealed = {"encrypted_content": base64.b64encode(thinking.encode(errors="replace")).decode()} if hidden else {}
        yield {"id": f"rs_{name}", "type": "reasoning", "summary": [_part("summary_text", thinking)], **sealed}
    calls = message.get("tool_calls") or ()
    if message["content"] or not calls:
        content = [_part("output_text", message["content"])]
        yield {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status, "content": content}
    for number, one in enumerate(calls):
        call = {"call_id": one["id"], **one["function"], **_apart(body, one["function"]["name"]), "status": "completed"}
        yield {"id": f"fc_{name}_{number}", "type": "function_call", **call}


def _part(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


def store(stored: dict[str, Any], made: Mapping[str, Any], chat: Body, message: Message) -> None:
    """Keeps a response for the requests that go on from it. Its instructions are not carried over."""
    orders = 1 if made["instructions"] else 0
    stored |= {one["id"]: one for one in made["output"]}
    if made["store"]:
        stored |= {made["id"]: [*chat["messages"][orders:], message], f"whole {made['id']}": dict(made)}


def events(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a response as the events of a stream, each item and text in one piece."""
    begun = {**made, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    told: list[dict[str, Any]] = []

    def tell(kind: str, **fields: Any) -> None:
        told.append({"type": f"response.{kind}", **fields, "sequence_number": len(told)})

    tell("created", response=begun)
    tell("in_progress", response=begun)
    for place, item in enumerate(made["output"]):
        _tell_item(tell, item, place)
    tell(made["status"], response=made)
    return told


def _tell_item(tell: Callable[..., None], item: Item, place: int) -> None:
    at = {"output_index": place, "item_id": item["id"]}
    empty = {"reasoning": "summary", "message": "content", "function_call": "arguments"}[item["type"]]
    bare = {name: value for name, value in item.items() if name != "encrypted_content"}
    status = {"status": "in_progress"} if "status" in item else {}
    tell("output_item.added", output_index=place, item={**bare, empty: type(item[empty])(), **status})
    if item["type"] == "function_call":
        tell("function_call_arguments.delta", **at, delta=item["arguments"])
        tell("function_call_arguments.done", **at, arguments=item["arguments"], name=item["name"])
    else:
        said = item["type"] == "message"
        kind, text = ("content_part", "output_text") if said else ("reasoning_summary_part", "reasoning_summary_text")
        at |= {"content_index" if said else "summary_index": 0}
        scores: dict[str, Any] = {"logprobs": []} if said else {}
        (part,) = item[empty]
        tell(f"{kind}.added", **at, part={**part, "text": ""})
        tell(f"{text}.delta", **at, delta=part["text"], **scores)
        tell(f"{text}.done", **at, text=part["text"], **scores)
        tell(f"{kind}.done", **at, part=part)
    tell("output_item.done", output_index=place, item=item)

"""Writes completions and their streams as OpenAI's API does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from alignopsd_trl.environments.adapters.agents.messages import arguments_text
from alignopsd_trl.environments.adapters.agents.requests import Body


def completion(body: Body, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the completion of a request from the choices of its `Ask`s."""
    name = choices[0]["place"].replace("/", "-")
    spent = {"completion_tokens": sum(one["usage"]["completion_tokens"] for one in choices)}
    spent["prompt_tokens"] = choices[0]["usage"]["prompt_tokens"]
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model") or "policy",
        "choices": [_choice(name, place, one) for place, one in enumerate(choices)],
        "usage": spent | {"total_tokens": sum(spent.values())},
    }


def _choice(name: str, place: int, choice: Mapping[str, Any]) -> dict[str, Any]:
    message = dict(choice["message"])
    calls = [one["function"] for one in message.get("tool_calls", ())]
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{name}_{place}_{number}",
                "type": "function",
                "function": {"name": one["name"], "arguments": arguments_text(one["arguments"])},
            }
            for number, one in enumerate(calls)
        ]
    return {"index": place, "finish_reason": choice["finish_reason"], "logprobs": None, "message": message}


def stream(body: Body, whole: Mapping[str, Any]) -> bytes:
    """Returns a completion as the events of a stream: of each choice its text, a chunk for each of its calls, and its
    end."""
    usage = whole["usage"]
    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    rest = {**whole, "object": "chat.completion.chunk", "usage": None}
    if not counted:
        del rest["usage"]
    events = [{**rest, "choices": [piece]} for choice in whole["choices"] for piece in _pieces(choice)]
    if counted:
        events.append({**rest, "choices": [], "usage": usage})
    lines = [*map(json.dumps, events), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _pieces(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    message = choice["message"]
    at = {"index": choice["index"], "logprobs": None, "finish_reason": None}
    yield {**at, "delta": {name: value for name, value in message.items() if name != "tool_calls"}}
    for number, call in enumerate(message.get("tool_calls", ())):
        yield {**at, "delta": {"tool_calls": [{**call, "index": number}]}}
    yield {**at, "delta": {}, "finish_reason": choice["finish_reason"]}


def named_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns events as they go over the wire where each has a name, which chat completions' have not."""
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()

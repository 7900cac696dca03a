"""Writes completions and their streams as OpenAI's API does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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
                "function": {"name": one["name"], "arguments": _text(one["arguments"])},
            }
            for number, one in enumerate(calls)
        ]
    return {"index": place, "finish_reason": choice["finish_reason"], "logprobs": None, "message": message}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def stream(body: Body, whole: Mapping[str, Any]) -> bytes:
    """Returns a completion as the events of a stream, each choice in one piece."""
    usage = whole["usage"]
    rest = {name: value for name, value in whole.items() if name != "usage"}
    chunk = {**rest, "object": "chat.completion.chunk", "choices": [_delta(one) for one in whole["choices"]]}
    events = [chunk]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk, "choices": [], "usage": usage})
    lines = [*map(json.dumps, events), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [{**call, "index": number} for number, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    return {name: value for name, value in choice.items() if name != "message"} | {"delta": delta}

"""Writes completions, streams and errors as OpenAI's API does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from alignopsd_trl.environments.adapters.agents.line import Line, settle
from alignopsd_trl.environments.adapters.agents.requests import Ask, Body, Refused

NOT_TRAINED, RETRIES = "x-not-trained", "x-stainless-retry-count"  # headers
JSON, EVENTS = "application/json", "text/event-stream"
Answer = tuple[int, str, bytes]
"""Status, content type and body of an HTTP response."""


def completion(body: Body, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the completion of a request from the choices of its `Ask`s."""
    name = choices[0]["place"].replace("/", "-")
    spent = {"completion_tokens": sum(one["usage"]["completion_tokens"] for one in choices)}
    spent["prompt_tokens"] = choices[0]["usage"]["prompt_tokens"]
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "policy"),
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


def answered(body: Body, choices: Sequence[Mapping[str, Any]]) -> Answer:
    """Returns the completion as an HTTP response, a stream of events where the request says so."""
    whole = completion(body, choices)
    if not body.get("stream"):
        return 200, JSON, json.dumps(whole).encode()
    usage = whole.pop("usage")
    chunk = {**whole, "object": "chat.completion.chunk", "choices": [_delta(one) for one in whole["choices"]]}
    events = [chunk]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk, "choices": [], "usage": usage})
    lines = [*map(json.dumps, events), "[DONE]"]
    return 200, EVENTS, "".join(f"data: {line}\n\n" for line in lines).encode()


def _delta(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [{**call, "index": number} for number, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    return {name: value for name, value in choice.items() if name != "message"} | {"delta": delta}


def refused(error: Refused) -> Answer:
    told = {"message": str(error), "type": "invalid_request_error", "param": None, "code": error.code}
    return error.status, JSON, json.dumps({"error": told}).encode()


def gathered(asks: Sequence[Ask]) -> Future[list[dict[str, Any]]]:
    """Returns a future of all choices. If it is cancelled, what is not sampled yet will not be."""
    whole: Future[list[dict[str, Any]]] = Future()

    def one_more(_: Future) -> None:
        if all(one.answer.done() and not one.answer.cancelled() for one in asks):
            problem = next((error for one in asks if (error := one.answer.exception())), None)
            settle(whole, [] if problem else [one.answer.result() for one in asks], problem)

    whole.add_done_callback(lambda one: [ask.answer.cancel() for ask in asks] if one.cancelled() else None)
    for ask in asks:
        ask.answer.add_done_callback(one_more)
    return whole


def exchange(line: Line, data: bytes, headers: Mapping[str, str]) -> Future[Answer]:
    """Answers an HTTP request of an episode."""
    done: Future[Answer] = Future()
    try:
        body = json.loads(data)
        choices = gathered(line.ask(body, not headers.get(NOT_TRAINED), headers.get(RETRIES, "0") != "0"))
    except (Refused, ValueError, TypeError, KeyError, AttributeError) as error:  # a foreign client may send anything
        told = error if isinstance(error, Refused) else Refused(f"{type(error).__name__}: {error}")
        done.set_result(refused(told))
        return done

    def sampled(found: Future[list[dict[str, Any]]]) -> None:
        if not found.cancelled():
            problem = found.exception()
            settle(done, refused(problem) if isinstance(problem, Refused) else answered(body, found.result()))

    done.add_done_callback(lambda one: choices.cancel() if one.cancelled() else None)
    choices.add_done_callback(sampled)
    return done

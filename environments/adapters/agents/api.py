"""The API of an episode over HTTP, with a socket or without: which path does what, and errors as OpenAI writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from alignopsd_trl.environments.adapters.agents import messages_api, responses
from alignopsd_trl.environments.adapters.agents.answers import completion, named_events, stream
from alignopsd_trl.environments.adapters.agents.line import RequestLine, settle
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Ask, Body
from alignopsd_trl.environments.adapters.agents.schema import plain, read

NOT_TRAINED, RETRIES = "x-not-trained", "x-stainless-retry-count"  # headers
JSON, EVENTS = "application/json", "text/event-stream"
MODEL = {"id": "policy", "object": "model", "created": 0, "owned_by": "alignopsd"}
MODEL |= {"type": "model", "display_name": "policy", "created_at": "1970-01-01T00:00:00Z"}  # Anthropic's fields
ASKED = ("chat/completions", "responses", "messages", "messages/count_tokens")
SERVED = re.compile(rf"/(?:(?P<kind>{'|'.join(ASKED)}|lost|models)|(?P<under>models|responses)/(?P<id>[^/]+))/*$")
COUNT = ASKED[-1]
METHODS = dict.fromkeys([*ASKED, "lost"], "POST")  # others are got


STREAMS: dict[str, Callable[[Body, Any], bytes]] = {
    "chat/completions": stream,
    "responses": lambda body, made: named_events(responses.events(made)),
    "messages": lambda body, made: named_events(messages_api.events(made)),
}


class HttpAnswer(NamedTuple):
    """Status, content type and body of an HTTP response, and the request that it answers."""

    status: int
    kind: str
    body: bytes
    asks: list[Ask]


class HttpCall(NamedTuple):
    """An HTTP request: its path with or without a query, its headers with small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    data: bytes = b""


def written(value: Any, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, JSON, json.dumps(value).encode(), [])


def refused(error: Refused, path: str = "") -> HttpAnswer:
    """Returns an error in the form of the API that a path belongs to."""
    if "/messages" in path:
        return written(messages_api.error(error), error.status)
    kind = "invalid_request_error"
    return written(
        {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}, error.status
    )


def gathered(asks: Sequence[Ask]) -> Future[list[dict[str, Any]]]:
    """Returns a future of all choices. If it is cancelled, what is not sampled yet will not be."""
    whole: Future[list[dict[str, Any]]] = Future()

    def one_more(ended: Future) -> None:
        if ended.cancelled():
            whole.cancel()
        elif all(one.answer.done() and not one.answer.cancelled() for one in asks):
            problem = next((error for one in asks if (error := one.answer.exception())), None)
            settle(whole, [] if problem else [one.answer.result() for one in asks], problem)

    whole.add_done_callback(lambda one: [ask.answer.cancel() for ask in asks] if one.cancelled() else None)
    for ask in asks:
        ask.answer.add_done_callback(one_more)
    return whole


def exchange(line: RequestLine, call: HttpCall, waits: Callable[[], bool] = lambda: True) -> Future[HttpAnswer]:
    """Answers an HTTP request of an episode. The future is cancelled if its caller has left (``waits``)."""
    try:
        kind, name = _route(call)
        if name or kind in ("models", "lost"):
            return _known(_told(line, kind, name, call.data))
        body = plain(read(call.data))
        body |= messages_api.COUNTED if kind == COUNT else {}
        chat = _as_chat(kind, body, line)
        trained = kind != COUNT and call.headers.get(NOT_TRAINED, "0").lower() in ("", "0", "false")
        asks = line.ask(chat, trained, call.headers.get(RETRIES, "0") != "0", waits)
    except Refused as error:
        return _as_answer(line.refusal(error), written, call.path)

    def write(choices: Sequence[Mapping[str, Any]]) -> HttpAnswer:
        whole = completion(body, choices)
        if kind == "responses":
            said, whole = whole["choices"][0]["message"], responses.response(body, whole)
            responses.store(line.stored, whole, chat, said)
        elif kind == "messages":
            try:
                whole = messages_api.message(whole, choices[0]["stop_sequence"])
            except Refused as error:
                line.note(error)
                raise
        elif kind == COUNT:
            whole = {"input_tokens": whole["usage"]["prompt_tokens"]}
        streamed = bool(body.get("stream"))
        told = STREAMS[kind](body, whole) if streamed else json.dumps(whole).encode()
        return HttpAnswer(200, EVENTS if streamed else JSON, told, asks)

    return _as_answer(gathered(asks), write, call.path)


def _as_chat(kind: str, body: Body, line: RequestLine) -> Body:
    """Returns the chat request that says what a request of another API does, the inner form of all."""
    if kind == "responses":
        return responses.chat_request(body, line.stored, line.rules.ignores)
    return messages_api.chat_request(body, line.rules.ignores) if kind in ("messages", COUNT) else body


def _known(value: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(value)
    return done


def _as_answer(found: Future[Any], write: Callable[[Any], HttpAnswer], path: str) -> Future[HttpAnswer]:
    """Returns a future of an answer, which is cancelled if either is."""
    done: Future[HttpAnswer] = Future()

    def ended(one: Future[Any]) -> None:
        if one.cancelled():
            done.cancel()
            return
        try:
            settle(done, write(one.result()))
        except Refused as error:
            settle(done, refused(error, path))
        except Exception as error:  # a callback has no caller; it is raised where the answer is waited for
            settle(done, error=error)

    done.add_done_callback(lambda one: found.cancel() if one.cancelled() else None)
    found.add_done_callback(ended)
    return done


def _route(call: HttpCall) -> tuple[str, str]:
    """Returns what a path names. What comes before it depends on the client: `/v1`, Azure's deployments, nothing."""
    path = call.path.partition("?")[0]
    found = SERVED.search(path)
    if found is None:
        served = "chat/completions, responses, messages and models are"
        raise Refused(f"{path} is not served; {served}", "unknown_url", 404)
    kind = found["kind"] or found["under"]
    if call.method != METHODS.get(kind if found["kind"] else "", "GET"):
        raise Refused(f"{call.method} {path} is not served", "method_not_allowed", 405)
    return kind, found["id"] or ""


def _told(line: RequestLine, kind: str, name: str, data: bytes) -> HttpAnswer:
    """Answers what needs no sampling."""
    if kind == "models":
        return written(MODEL | {"id": name} if name else {"object": "list", "data": [MODEL]})
    if kind == "lost":
        line.lost = data.decode(errors="replace").strip()[:1000] or "a program of the agent says so"
        return written({"object": "lost", "reason": line.lost})
    if f"whole {name}" not in line.stored:
        raise Refused(f"the episode has no stored response {name!r:.80}", "not_found", 404)
    return written(line.stored[f"whole {name}"])

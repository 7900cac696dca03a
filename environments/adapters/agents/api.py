"""The API of an episode over HTTP, with a socket or without: which path does what, and errors as OpenAI writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from alignopsd_trl.environments.adapters.agents import responses
from alignopsd_trl.environments.adapters.agents.answers import completion, stream
from alignopsd_trl.environments.adapters.agents.line import RequestLine, settle
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Ask
from alignopsd_trl.environments.adapters.agents.schema import plain, read

NOT_TRAINED, RETRIES = "x-not-trained", "x-stainless-retry-count"  # headers
JSON, EVENTS = "application/json", "text/event-stream"
MODEL = {"id": "policy", "object": "model", "created": 0, "owned_by": "alignopsd"}
SERVED = re.compile(
    r"/(?:(?P<kind>chat/completions|responses|lost|models)|(?P<under>models|responses)/(?P<id>[^/]+))/*$"
)
METHODS = {"chat/completions": "POST", "responses": "POST", "lost": "POST"}  # others are got


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


def refused(error: Refused) -> HttpAnswer:
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
        chat = responses.chat_request(body, line.stored) if kind == "responses" else body
        trained = call.headers.get(NOT_TRAINED, "0").lower() in ("", "0", "false")
        asks = line.ask(chat, trained, call.headers.get(RETRIES, "0") != "0", waits)
    except Refused as error:
        return _as_answer(line.refusal(error), refused)

    def write(choices: Sequence[Mapping[str, Any]]) -> HttpAnswer:
        whole = completion(body, choices)
        streamed = bool(body.get("stream"))
        if kind != "responses":
            told = stream(body, whole) if streamed else json.dumps(whole).encode()
        else:
            made = responses.response(body, whole)
            responses.store(line.stored, made, chat, whole["choices"][0]["message"])
            told = responses.stream(made) if streamed else json.dumps(made).encode()
        return HttpAnswer(200, EVENTS if streamed else JSON, told, asks)

    return _as_answer(gathered(asks), write)


def _known(value: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(value)
    return done


def _as_answer(found: Future[Any], write: Callable[[Any], HttpAnswer]) -> Future[HttpAnswer]:
    """Returns a future of an answer, which is cancelled if either is."""
    done: Future[HttpAnswer] = Future()

    def ended(one: Future[Any]) -> None:
        if one.cancelled():
            done.cancel()
            return
        try:
            settle(done, write(one.result()))
        except Refused as error:
            settle(done, refused(error))
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
        served = "chat/completions, responses and models are"
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

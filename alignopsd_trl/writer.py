"""Short texts that a model writes: an OpenAI-compatible endpoint, its answers in JSON, and their bounds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer that is not as asked may raise."""

MOST_CHARACTERS = 300


class EndpointError(ValueError):
    """Raised for an answer that is no chat completion, or that did not come to its end in time."""


class EndpointDown(EndpointError):
    """Raised for an endpoint that can't be reached."""


def connection(timeout: float = 120.0) -> httpx.Client:
    """Opens a client of endpoints, with the key from ``OPENAI_API_KEY`` if there is one."""
    key = os.environ.get("OPENAI_API_KEY")
    return httpx.Client(timeout=timeout, headers={"Authorization": f"Bearer {key}"} if key else {})


def complete(client: httpx.Client, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Asks for a chat completion and returns its message, whose ``content`` and ``reasoning_content`` are texts."""
    try:
        reply = client.post(f"{url.rstrip('/')}/chat/completions", json=body)
    except (httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError) as error:
        raise EndpointError(f"endpoint {url} gave no whole answer: {type(error).__name__}: {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EndpointDown(f"endpoint {url} can't be reached ({error}); start it, or correct the address") from error
    if reply.status_code != 200:
        raise EndpointError(f"endpoint {url} answered {reply.status_code}: {reply.text:.200}")
    try:
        message = reply.json()["choices"][0]["message"]
        texts = {name: message.get(name) or "" for name in ("content", "reasoning_content")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise TypeError("content must be a text")
    except MALFORMED as error:
        raise EndpointError(
            f"endpoint {url} answered with no chat completion: {reply.text!r:.120}; is it an OpenAI-compatible "
            "server's address, up to /v1?"
        ) from error
    return {**message, **texts}


@dataclass
class EndpointWriter:
    """Asks an endpoint a question; temperature 0."""

    url: str
    model: str = "default"

    def __call__(self, question: str, seed: int = 0) -> str:
        messages = [{"role": "user", "content": question}]
        body = {"model": self.model, "messages": messages, "temperature": 0.0, "seed": seed, "max_tokens": 2048}
        with connection() as client:
            return complete(client, self.url, body)["content"]


def read_object(answer: str) -> Any:
    """Returns the JSON object of an answer, whatever stands around it; raises one of `MALFORMED` if there is none."""
    answer = answer.rpartition("</think>")[2]
    return json.loads(answer[answer.index("{") : answer.rindex("}") + 1])


def one_line(text: str, most: int, special: Collection[str] = ()) -> str:
    """Returns at most so many words of a text, in which tags and tokens of chat templates are only words."""
    for token in special:
        text = text.replace(token, f"{token[:1]} {token[1:]}")
    while (bare := re.sub("<([^<>]*)>", r" \1 ", text)) != text:
        text = bare
    return " ".join(text.split()[:most])[:MOST_CHARACTERS].strip()


def bounded(text: str, most: int, special: Collection[str] = ()) -> str:
    """Returns the `one_line` of what a writer said.

    Raises:
        ValueError: if nothing is left of it, or if no file can hold it (half of a surrogate pair).
    """
    text = one_line(text, most, special)
    text.encode()
    if not text:
        raise ValueError("an empty text")
    return text

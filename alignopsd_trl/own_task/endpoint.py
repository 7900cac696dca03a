"""Asks an OpenAI-compatible endpoint for chat completions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer that is not as asked may raise."""


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

"""Transports of openai's clients that open no socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2  # openai's own

from alignopsd_trl.environments.adapters.agents.answers import Answer


class AsyncWire(httpx2.AsyncBaseTransport):
    def __init__(self, exchange: Callable[[bytes], Any]):
        self._exchange = exchange

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return _response(await self._exchange(await request.aread()).response())


class Wire(httpx2.BaseTransport):
    def __init__(self, exchange: Callable[[bytes], Any]):
        self._exchange = exchange

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return _response(self._exchange(request.read()).response_sync())


def _response(answer: Answer) -> httpx2.Response:
    status, kind, data = answer
    return httpx2.Response(status, headers={"content-type": kind}, content=data)


def async_client(wire: AsyncWire) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=wire)


def client(wire: Wire) -> httpx2.Client:
    return httpx2.Client(transport=wire)

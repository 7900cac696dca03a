"""Openai's clients without a socket."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future

import httpx2  # openai's own
from openai import AsyncOpenAI, OpenAI

from alignopsd_trl.environments.adapters.agents.answers import Answer

Exchange = Callable[[bytes], Future[Answer]]
KEY, URL = "episode", "http://policy/v1"


def asynchronous(exchange: Exchange) -> AsyncOpenAI:
    async def send(request: httpx2.Request) -> httpx2.Response:
        return _response(await wrap_future(exchange(await request.aread())))

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(send))
    return AsyncOpenAI(api_key=KEY, base_url=URL, max_retries=0, http_client=client)


def synchronous(exchange: Exchange) -> OpenAI:
    client = httpx2.Client(transport=httpx2.MockTransport(lambda one: _response(exchange(one.read()).result())))
    return OpenAI(api_key=KEY, base_url=URL, max_retries=0, http_client=client)


def _response(answer: Answer) -> httpx2.Response:
    return httpx2.Response(answer[0], headers={"content-type": answer[1]}, content=answer[2])

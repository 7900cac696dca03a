"""What an agent gets in place of a model: chat completions that the policy answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.adapters.agents.answers import Answer, answered, completion, refused
from alignopsd_trl.environments.adapters.agents.line import Line
from alignopsd_trl.environments.adapters.agents.requests import Ask, Refused

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

NOT_TRAINED = "x-not-trained"


class Client:
    """The policy of one episode as a chat-completions API.

    Args:
        line: of the episode.
        host: the address at which `url` listens.
        trained: whether the policy learns from its responses.
    """

    def __init__(self, line: Line, host: str = "127.0.0.1", trained: bool = True):
        self._line, self._host, self._trained = line, host, trained

    async def chat(self, **body: Any) -> dict[str, Any]:
        """Returns a chat completion as a dict; needs no openai.

        Raises:
            Refused: where the API returns an error.
        """
        asks = self._line.ask(body, self._trained)
        return completion(body, await asyncio.gather(*[asyncio.wrap_future(one.answer) for one in asks]))

    def chat_sync(self, **body: Any) -> dict[str, Any]:
        """Does as `chat`, for agents that are plain functions."""
        return completion(body, [one.answer.result() for one in self._line.ask(body, self._trained)])

    def reward(self, value: float) -> None:
        """Gives a reward to the turn answered last."""
        self._line.reward += float(value)

    def not_trained(self) -> Client:
        """Returns a client for requests that the policy answers and does not learn from, such as a judge's. They are in
        the records of the next turn. In other processes the header ``x-not-trained: 1`` says so."""
        return Client(self._line, self._host, trained=False)

    @cached_property
    def openai(self) -> AsyncOpenAI:
        """An ``AsyncOpenAI`` that opens no socket."""
        from openai import AsyncOpenAI

        from alignopsd_trl.environments.adapters.agents.wires import AsyncWire, async_client

        return AsyncOpenAI(**self._settings, http_client=async_client(AsyncWire(self._exchange)))

    @cached_property
    def openai_sync(self) -> OpenAI:
        """An ``OpenAI`` that opens no socket."""
        from openai import OpenAI

        from alignopsd_trl.environments.adapters.agents.wires import Wire, client

        return OpenAI(**self._settings, http_client=client(Wire(self._exchange)))

    def _exchange(self, data: bytes) -> Exchange:
        return Exchange(self._line, data, {NOT_TRAINED: "" if self._trained else "1"})

    @property
    def _settings(self) -> dict[str, Any]:
        return {"api_key": "episode", "base_url": "http://policy/v1", "max_retries": 0}

    @property
    def key(self) -> str:
        """The key of this episode at `url`."""
        return self._served[1]

    @property
    def url(self) -> str:
        """The address of the API for other processes. It holds the key too, for clients that take keys from their
        environment alone."""
        return self._served[0]

    @cached_property
    def _served(self) -> tuple[str, str]:
        from alignopsd_trl.environments.adapters.agents.server import server

        return server(self._host).open(self._line)


class Exchange:
    """One HTTP request of an episode and its response."""

    def __init__(self, line: Line, data: bytes, headers: Mapping[str, str]):
        self._body: dict[str, Any] = {}
        self._asks: list[Ask] = []
        self._problem: Refused | None = None
        try:
            found = json.loads(data)
            if not isinstance(found, dict):
                raise Refused(f"the request's body is {found!r:.80}, not an object")
            self._body = found
            trained = not headers.get(NOT_TRAINED)
            self._asks = line.ask(found, trained, headers.get("x-stainless-retry-count", "0") != "0")
        except Refused as error:
            self._problem = error
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # a foreign client may send anything
            self._problem = Refused(f"{type(error).__name__}: {error}")

    async def response(self) -> Answer:
        """Awaits the response. One that is cancelled is not sampled any more."""
        try:
            return self._answer(await asyncio.gather(*[asyncio.wrap_future(one.answer) for one in self._asks]))
        except Refused as error:
            return refused(error)

    def response_sync(self) -> Answer:
        try:
            return self._answer([one.answer.result() for one in self._asks])
        except Refused as error:
            return refused(error)

    def _answer(self, choices: list[dict[str, Any]]) -> Answer:
        return refused(self._problem) if self._problem is not None else answered(self._body, choices)

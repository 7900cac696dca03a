"""What an agent gets in place of a model: chat completions that the policy answers."""

from __future__ import annotations

from asyncio import wrap_future
from functools import cached_property
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.adapters.agents.answers import NOT_TRAINED, Answer, completion, exchange, gathered
from alignopsd_trl.environments.adapters.agents.line import Line
from alignopsd_trl.environments.adapters.agents.server import server

if TYPE_CHECKING:
    from concurrent.futures import Future

    from httpx2 import Request  # openai's own
    from openai import AsyncOpenAI, OpenAI

NAMED: dict[str, Any] = {"api_key": "episode", "base_url": "http://policy/v1", "max_retries": 0}
"""Of openai's clients, whose requests go nowhere."""


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
        """Returns a chat completion as a dict; needs no openai. Raises `Refused` where the API returns an error."""
        return completion(body, await wrap_future(gathered(self._line.ask(body, self._trained))))

    def chat_sync(self, **body: Any) -> dict[str, Any]:
        """Does as `chat`, for agents that are plain functions."""
        return completion(body, gathered(self._line.ask(body, self._trained)).result())

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
        from httpx2 import AsyncClient, MockTransport, Response
        from openai import AsyncOpenAI

        async def send(request: Request) -> Response:
            return Response(**_parts(await wrap_future(self._exchange(await request.aread()))))

        return AsyncOpenAI(**NAMED, http_client=AsyncClient(transport=MockTransport(send)))

    @cached_property
    def openai_sync(self) -> OpenAI:
        """An ``OpenAI`` that opens no socket."""
        from httpx2 import Client as HttpClient
        from httpx2 import MockTransport, Response
        from openai import OpenAI

        def send(request: Request) -> Response:
            return Response(**_parts(self._exchange(request.read()).result()))

        return OpenAI(**NAMED, http_client=HttpClient(transport=MockTransport(send)))

    def _exchange(self, data: bytes) -> Future[Answer]:
        return exchange(self._line, data, {} if self._trained else {NOT_TRAINED: "1"})

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
        return server(self._host).open(self._line)


def _parts(answer: Answer) -> dict[str, Any]:
    return {"status_code": answer[0], "headers": {"content-type": answer[1]}, "content": answer[2]}

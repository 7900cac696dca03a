"""What an agent gets in place of a model: an API that the policy answers."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any

from alignopsd_trl.environments.adapters.agents.answers import completion
from alignopsd_trl.environments.adapters.agents.api import NOT_TRAINED, HttpAnswer, HttpCall, exchange, gathered
from alignopsd_trl.environments.adapters.agents.line import RequestLine
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.requests import Ask
from alignopsd_trl.environments.adapters.agents.schema import plain
from alignopsd_trl.environments.adapters.agents.server import server

if TYPE_CHECKING:
    from concurrent.futures import Future

    from httpx2 import Request  # openai's own
    from openai import AsyncOpenAI, OpenAI

NAMED: dict[str, Any] = {"api_key": "episode", "base_url": "http://policy/v1", "max_retries": 0}
"""Of openai's clients, whose requests go nowhere."""
ANSWERED: ContextVar[tuple[RequestLine, list[Ask]] | None] = ContextVar("answered", default=None)
"""The request answered last in this task or thread, which a reward is for."""


class Client:
    """The policy of one episode behind OpenAI's API.

    Args:
        line: of the episode.
        host: the address at which `url` listens.
        trained: whether the policy learns from its responses.
    """

    def __init__(self, line: RequestLine, host: str = "127.0.0.1", trained: bool = True):
        self.line, self._host, self._trained = line, host, trained

    async def chat(self, **body: Any) -> dict[str, Any]:
        """Returns a chat completion as a dict; needs no openai. Raises `Refused` where the API returns an error."""
        asks, answer = self._asked(body)
        return self._answered(completion(body, await wrap_future(answer)), asks)

    def chat_sync(self, **body: Any) -> dict[str, Any]:
        """Does as `chat`, for agents that are plain functions."""
        asks, answer = self._asked(body)
        return self._answered(completion(body, answer.result()), asks)

    def _asked(self, body: dict[str, Any]) -> tuple[list[Ask], Future[list[dict[str, Any]]]]:
        try:
            asks = self.line.ask(plain(body), self._trained)
        except Refused as error:
            return [], self.line.refusal(error)
        return asks, gathered(asks)

    def _answered(self, answer: Any, asks: list[Ask]) -> Any:
        if asks and asks[0].trained:
            ANSWERED.set((self.line, asks))
        return answer

    def reward(self, value: float, answer: Any = None, choice: int = 0) -> None:
        """Gives a reward to a turn.

        Without ``answer`` that is the turn whose answer this task or thread got last, so that sub-agents side by side
        reward their own. Where none arrived in it, as with requests of other processes, it is the turn answered last.

        Args:
            answer: a completion or a response, as a dict or an object of openai.
            choice: of a completion with several.

        Raises:
            ValueError: if that is no turn of this episode; without ``answer`` also if none arrived here and the agent
                asks in parallel.
        """
        if answer is not None:
            name = answer["id"] if isinstance(answer, Mapping) else answer.id
            asks = self.line.asks_named(name)
        else:
            last = ANSWERED.get()
            asks = last[1] if last is not None and last[0] is self.line else None
        self.line.reward(float(value), asks, choice)

    def not_trained(self) -> Client:
        """Returns a client for requests that the policy answers and does not learn from, such as a judge's. They are in
        the records of the next turn. In other processes the header ``x-not-trained: 1`` says so."""
        return Client(self.line, self._host, trained=False)

    @cached_property
    def openai(self) -> AsyncOpenAI:
        """An ``AsyncOpenAI`` that opens no socket."""
        from httpx2 import AsyncClient, MockTransport, Response
        from openai import AsyncOpenAI

        async def send(request: Request) -> Response:
            await request.aread()
            answer = await wrap_future(self._exchange(request))
            return Response(**self._answered(_parts(answer), answer.asks))

        return AsyncOpenAI(**NAMED, http_client=AsyncClient(transport=MockTransport(send)))

    @cached_property
    def openai_sync(self) -> OpenAI:
        """An ``OpenAI`` that opens no socket."""
        from httpx2 import Client as HttpClient
        from httpx2 import MockTransport, Response
        from openai import OpenAI

        def send(request: Request) -> Response:
            request.read()
            answer = self._exchange(request).result()
            return Response(**self._answered(_parts(answer), answer.asks))

        return OpenAI(**NAMED, http_client=HttpClient(transport=MockTransport(send)))

    def _exchange(self, request: Request) -> Future[HttpAnswer]:
        headers = {**request.headers, **({} if self._trained else {NOT_TRAINED: "1"})}
        return exchange(self.line, HttpCall(request.method, request.url.path, headers, request.content))

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
        return server(self._host).open(self.line)


def _parts(answer: HttpAnswer) -> dict[str, Any]:
    return {"status_code": answer.status, "headers": {"content-type": answer.kind}, "content": answer.body}

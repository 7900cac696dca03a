"""What an agent gets after training: the same as in training, answered by a server of the checkpoint."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

WAIT = 600.0  # seconds for an answer


class Served:
    """Stands in for a `Client`. ``reward`` and ``not_trained`` do nothing.

    Args:
        url: of an OpenAI-compatible server, up to ``/v1``.
        model: the server's name of the checkpoint.
        key: of the server.
        asked: fields of each request by `chat`, such as ``temperature``.
    """

    def __init__(self, url: str, model: str = "policy", key: str = "none", **asked: Any):
        self.url, self.key, self._asked = url.rstrip("/"), key, {"model": model, **asked}

    async def chat(self, **body: Any) -> dict[str, Any]:
        """Returns a chat completion as a dict. Raises ``httpx.HTTPStatusError`` where the server returns an error."""
        return await asyncio.to_thread(self.chat_sync, **body)

    def chat_sync(self, **body: Any) -> dict[str, Any]:
        asked, headers = self._asked | body, {"Authorization": f"Bearer {self.key}"}
        answer = httpx.post(f"{self.url}/chat/completions", json=asked, headers=headers, timeout=WAIT)
        return answer.raise_for_status().json()

    @cached_property
    def openai(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=self.key, base_url=self.url)

    @cached_property
    def openai_sync(self) -> OpenAI:
        from openai import OpenAI

        return OpenAI(api_key=self.key, base_url=self.url)

    def reward(self, value: float) -> None:
        """Nothing learns here."""

    def not_trained(self) -> Served:
        return self

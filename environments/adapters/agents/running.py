"""Runs agents, each on a thread of its own: one that blocks its event loop blocks its own episode alone."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from alignopsd_trl.environments.adapters.agents.client import Client
from alignopsd_trl.environments.adapters.agents.line import End, Line


class Running:
    """An agent at work. It puts its end into the line.

    Args:
        agent: ``agent(row, client)``, a coroutine function or a plain one.
    """

    def __init__(self, agent: Callable[..., Any], line: Line, host: str):
        self._agent, self._line, self._client = agent, line, Client(line, host)
        self._stop: Callable[[], Any] = lambda: None
        self.thread = threading.Thread(target=self._run, daemon=True, name="agent")
        self.thread.start()

    def _run(self) -> None:
        try:
            found = self._agent(self._line.row, self._client)
            end = End(asyncio.run(self._awaited(found)) if inspect.isawaitable(found) else found)
        except BaseException as error:  # of foreign code: the episode fails of it
            end = End(error=error)
        self._line.put_end(end)

    async def _awaited(self, found: Any) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "asyncio.run makes one"
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        return await found

    def cancel(self) -> None:
        """Cancels a coroutine. A thread can't be ended: its next request is refused."""
        with suppress(RuntimeError):  # its loop is closed
            self._stop()

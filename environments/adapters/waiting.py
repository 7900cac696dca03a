"""Coroutines of foreign code, awaited from threads, on event loops of their own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import cache
from typing import Any


class EventLoop:
    """An event loop on a thread of its own: what a client keeps open between calls stays on the loop that it was opened
    on, and one that blocks its loop blocks nobody else's."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def settled(self, value: Any) -> Any:
        """The value itself, or what it comes to if it must be awaited. What it raises is raised here."""
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True, name="environment-loop").start()
        return asyncio.run_coroutine_threadsafe(_awaited(value), self._loop).result()

    def stop(self) -> None:
        """Ends the thread; a later call begins another."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


async def _awaited(value: Any) -> Any:
    return await value


@cache
def shared_loop() -> EventLoop:
    """One for a process, as in TRL: functions that several episodes call may share what they keep open."""
    return EventLoop()


def settled(value: Any) -> Any:
    """As `EventLoop.settled`, on the shared one."""
    return shared_loop().settled(value)

"""Runs foreign code on threads of its own: coroutines on event loops, and objects that must stay on one thread."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class EventLoop:
    """An event loop on a thread of its own. A client's connections stay on the loop on which they were opened, and a
    client that blocks its loop blocks no other one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def settled(self, value: Any) -> Any:
        """Returns the value, awaited if need be, and raises its error in the calling thread."""
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


class OwnThread:
    """Runs all calls of one object on the same thread, as TRL does: connections of sqlite and browsers work only on the
    thread that opened them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future] | None] | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """Makes a call and returns its result, or raises its error in the calling thread."""
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), daemon=True, name="environment-own").start()
        answer: Future = Future()
        self._calls.put((call, answer))
        return answer.result()

    def stop(self) -> None:
        """Ends the thread; a later call begins another."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)


def _serve(calls: queue.SimpleQueue) -> None:
    while (asked := calls.get()) is not None:
        call, answer = asked
        try:
            answer.set_result(call())
        except BaseException as error:  # raised in the caller's thread
            answer.set_exception(error)


async def _awaited(value: Any) -> Any:
    return await value


settled = EventLoop().settled
"""On one event loop of this process: as in TRL, functions that several episodes call may share connections."""

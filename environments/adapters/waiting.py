"""Coroutines of foreign code, awaited from threads: one event loop a process, so that what a client keeps open between
calls stays on the loop that it was opened on."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import cache
from typing import Any


def settled(value: Any) -> Any:
    """The value itself, or what it comes to if it must be awaited. What it raises is raised here."""
    if not inspect.isawaitable(value):
        return value
    return asyncio.run_coroutine_threadsafe(_awaited(value), _loop()).result()


async def _awaited(value: Any) -> Any:
    return await value


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="environments-async").start()
    return loop

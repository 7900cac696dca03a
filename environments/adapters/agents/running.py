"""Runs agents, each on a thread of its own: one that blocks its event loop blocks its own episode alone."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

import psutil

from alignopsd_trl.environments.adapters.agents.apart import Launched
from alignopsd_trl.environments.adapters.agents.client import Client
from alignopsd_trl.environments.adapters.agents.line import End, RequestLine

PROGRAMS = (subprocess.Popen, asyncio.subprocess.Process)


class Running:
    """An agent at work. It puts its end into the line.

    Args:
        agent: ``agent(row, client)``, a coroutine function or a plain one.
    """

    def __init__(self, agent: Callable[..., Any], line: RequestLine, host: str):
        self._agent, self._line, self._client = agent, line, Client(line, host)
        self._stop: Callable[[], Any] = lambda: None
        self._threads: list[int] = []  # of this agent
        self._found: Any = None  # what it returned at once, perhaps a coroutine
        self.thread = threading.Thread(target=self._run, daemon=True, name="agent")
        self.thread.start()

    def _run(self) -> None:
        self._threads.append(threading.get_ident())
        try:
            found = self._found = self._agent(self._line.row, self._client)
            end = End(asyncio.run(self._awaited(found)) if inspect.isawaitable(found) else found)
        except BaseException as error:  # of foreign code: the episode fails of it
            end = End(error=error)
        self._line.put_end(end)

    async def _awaited(self, found: Any) -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "asyncio.run makes one"
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        loop.set_default_executor(
            ThreadPoolExecutor(initializer=lambda: self._threads.append(threading.get_ident()))  # of asyncio.to_thread
        )
        return await found

    def cancel(self) -> None:
        """Cancels a coroutine, and kills the programs that the agent waits for. A thread can't be ended: its next
        request is refused."""
        alive = self.thread.is_alive()
        held = [one for frame in self._calls() for one in frame.f_locals.values()] if alive else []
        with suppress(RuntimeError):  # its loop is closed
            self._stop()
        for one in held:
            if isinstance(one, Launched):
                one.end()
        for process in {one.pid for one in held if isinstance(one, PROGRAMS)}:
            with suppress(psutil.Error):
                for one in [psutil.Process(process), *psutil.Process(process).children(recursive=True)]:
                    one.kill()

    def _calls(self) -> Iterator[FrameType]:
        """Yields the calls in which the agent is, on its threads and in its coroutine: what they hold are its
        programs, of which no list is kept anywhere."""
        frames = sys._current_frames()
        for frame in filter(None, map(frames.get, self._threads)):
            yield from (one for one, _ in traceback.walk_stack(frame))
        waiting = self._found
        while inspect.iscoroutine(waiting):
            yield from filter(None, [waiting.cr_frame])
            waiting = waiting.cr_await

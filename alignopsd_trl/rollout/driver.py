"""Runs coroutines that await futures, in the caller's thread.

There is no event loop, since a notebook has one of its own in the same thread. Autocast, `torch.no_grad` and Ctrl-C are
the caller's too.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from types import coroutine
from typing import Any, Generic, Protocol, TypeVar

from alignopsd_trl.rollout.sampler import PATIENCE, Sampler

SLICE = 60.0  # seconds after which processes that play on their own hear of each other
Question = TypeVar("Question")
Found = TypeVar("Found")


@coroutine
def answer(future: Future[Found]) -> Generator[Future[Found], None, Found]:
    """Awaits a future's result."""
    if not future.done():
        yield future
    return future.result()


class Desk(Protocol):
    """Answers what episodes ask."""

    def flush(self) -> bool:
        """Does what there is to do in this thread; whether there was something."""

    def close(self) -> None:
        """Ends what it does elsewhere."""


class Gathered(Generic[Question, Found]):
    """A desk that answers in one call what several episodes ask at the same time.

    Args:
        function: takes the numbers of the episodes, rising, and their questions; returns an answer for each.
    """

    def __init__(self, function: Callable[[list[int], list[Question]], Sequence[Found]]):
        self._function = function
        self._asked: list[tuple[int, Question, Future[Found]]] = []

    def ask(self, episode: int, question: Question) -> Future[Found]:
        future: Future[Found] = Future()
        self._asked.append((episode, question, future))
        return future

    def flush(self) -> bool:
        asked, self._asked = sorted(self._asked, key=lambda one: one[0]), []
        if asked:
            found = self._function([one[0] for one in asked], [one[1] for one in asked])
            for (_, _, future), value in zip(asked, found, strict=True):
                future.set_result(value)
        return bool(asked)

    def close(self) -> None:
        self._asked = []


class Driver:
    """Lets each coroutine go on as soon as it has what it awaits.

    Args:
        works: coroutines that await nothing but an `answer` of the samplers and desks.
        samplers, desks: what is to be kept going for them.

    Attributes:
        live: how many have not ended.
    """

    def __init__(self, works: Sequence[Coroutine[Any, Any, None]], samplers: Sequence[Sampler], desks: Sequence[Desk]):
        self._works, self._desks = works, desks
        self._own = [one for one in samplers if not one.waits_for_all]
        self._common = [one for one in samplers if one.waits_for_all]
        self._ready: queue.SimpleQueue[Coroutine[Any, Any, None]] = queue.SimpleQueue()
        for work in works:
            self._ready.put(work)
        self.live = len(works)

    def run(self) -> None:
        """Plays until all have ended, or wait for a sampler that `waits_for_all`, or for `SLICE` seconds."""
        end = time.monotonic() + SLICE
        while self.live and time.monotonic() < end:
            if self._go_on() or any([desk.flush() for desk in self._desks]):
                continue
            if any([sampler.advance() for sampler in self._own]):
                continue
            if self.live == sum(sampler.waiting for sampler in self._common):
                break
            self._go_on(PATIENCE)

    def meet(self) -> None:
        """Lets the samplers answer that wait for all. A collective."""
        for sampler in self._common:
            sampler.advance()

    def close(self) -> None:
        """Ends what has not ended."""
        for sampler in (*self._own, *self._common):
            sampler.drop()
        for desk in self._desks:
            desk.close()
        for work in self._works:
            work.close()

    def _go_on(self, patience: float = 0.0) -> bool:
        """Resumes those that can go on, after waiting so many seconds for the first; whether there were any."""
        went = False
        while True:
            try:
                work = self._ready.get(timeout=patience) if patience else self._ready.get_nowait()
            except queue.Empty:
                return went
            went, patience = True, 0.0
            try:
                awaited = work.send(None)
            except StopIteration:
                self.live -= 1
            else:
                awaited.add_done_callback(lambda _, work=work: self._ready.put(work))

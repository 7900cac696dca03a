"""Handles a reader of a command's output that leaves before the end, as ``head`` does."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ends_with_its_reader() -> Generator[None]:
    """Ends the process quietly, with status 0, once the reader of its output has left."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        out = select.poll()
        out.register(sys.stdout.fileno(), 0)
        if not out.poll(0):
            raise  # the error of another pipe
        _to_nowhere(sys.stdout)
        raise SystemExit(0) from None


@contextmanager
def outlives_its_readers(told: str) -> Generator[None]:
    """Discards the output after its reader has left; prints a note once on standard error, if that is still read."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(before[0], lambda: print(told, file=sys.stderr)), _Stream(before[1], lambda: None)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A stream whose writes raise no error when nobody reads it."""

    def __init__(self, stream: Any, leaves: Callable[[], None]):
        self._stream, self._leaves = stream, leaves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except BrokenPipeError:
            _to_nowhere(self._stream)
            self._leaves()
        except ValueError:  # a task's code has closed it
            if not self._stream.closed:
                raise
            self._stream = open(os.devnull, "w")
            self._leaves()


def _to_nowhere(stream: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

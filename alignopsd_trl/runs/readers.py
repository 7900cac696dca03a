"""Whoever reads what a command prints may leave before its end, as ``head`` does."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ends_with_its_reader() -> Generator[None]:
    """Ends the process quietly, with status 0, where whoever reads its output has read enough."""
    try:
        yield
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_left(sys.stdout):
            raise  # another pipe's
        _to_nowhere(sys.stdout)
        raise SystemExit(0) from None


@contextmanager
def outlives_its_readers(told: str) -> Generator[None]:
    """What is printed after the reader has left goes nowhere; standard error, if it is still read, is told so once."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(before[0], lambda: print(told, file=sys.stderr)), _Stream(before[1], lambda: None)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A stream that is written to without an error when nobody reads it."""

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
        except ValueError:  # code of a task has closed it
            if not self._stream.closed:
                raise
            self._stream = open(os.devnull, "w")
            self._leaves()


def _is_left(stream: Any) -> bool:
    out = select.poll()
    out.register(stream.fileno(), 0)
    return bool(out.poll(0))


def _to_nowhere(stream: Any) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

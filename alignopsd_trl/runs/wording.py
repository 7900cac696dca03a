"""How a message names a setting: as a flag where a command line is run, as an argument in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_flags: ContextVar[bool] = ContextVar("flags", default=False)


@contextmanager
def with_flags() -> Iterator[None]:
    """Messages that are made inside are read by somebody who gave a command line."""
    before = _flags.set(True)
    try:
        yield
    finally:
        _flags.reset(before)


def setting(name: str, value: Any = None) -> str:
    """``--name value`` or ``name=value``; the name alone without a value."""
    if _flags.get():
        return f"--{name}" if value is None else f"--{name} {value}"
    return name if value is None else f"{name}={value!r}"

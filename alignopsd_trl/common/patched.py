"""Changes attributes temporarily."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def patched(owner: Any, **values: Any) -> Generator[None]:
    """Sets attributes of a module or an object, not properties, for a while; a method is replaced in this one alone."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)

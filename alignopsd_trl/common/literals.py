"""Writes values into Python. What a value holds, such as quotes and line breaks, stays in it: it never becomes code."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def literal(value: Any) -> str:
    """Returns Python that makes a value, on one line: its `repr`, in double quotes where that needs no escapes."""
    text = repr(value)
    return text if '"' in text or "\\" in text else text.replace("'", '"')


def with_values(source: str, values: Mapping[str, Any]) -> str:
    """Returns Python in which names have other values. It assigns each of these names once, on one line."""
    for name, value in values.items():
        assignments = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Assign)]
        (old,) = [one.value for one in assignments if ast.unparse(one.targets[0]) == name]
        lines = source.encode().splitlines(keepends=True)  # ast counts bytes
        line = lines[old.lineno - 1]
        lines[old.lineno - 1] = line[: old.col_offset] + literal(value).encode() + line[old.end_col_offset :]
        source = b"".join(lines).decode()
    return source

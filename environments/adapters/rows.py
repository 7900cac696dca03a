"""Rows of a dataset that was made for TRL: their task ids and first messages."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_MADE = re.compile(r"row-[0-9a-f]{16}")


def row_id(row: Mapping[str, Any]) -> str:
    """Returns an id for a task without one: equal rows are one task."""
    text = json.dumps(dict(row), sort_keys=True, default=str)
    return f"row-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def is_row_id(value: Any) -> bool:
    """Whether an id was made by `row_id`, so that no class expects it."""
    return isinstance(value, str) and _MADE.fullmatch(value) is not None


def with_task_ids(dataset: Any) -> Any:
    """Returns a dataset (`datasets.Dataset` or `IterableDataset`) with a column ``task_id``: its own, else `row_id`."""
    if "task_id" in (dataset.column_names or ()):
        return dataset
    if hasattr(dataset, "add_column") and hasattr(dataset, "__len__"):
        return dataset.add_column("task_id", [row_id(row) for row in dataset])
    return dataset.map(lambda row: {"task_id": row_id(row)})


def messages_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the row's ``prompt`` as messages; a text is one user message, and a row without a prompt an empty one.

    Raises:
        TypeError: if the prompt is neither text nor messages.
    """
    prompt = row.get("prompt", "")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(one, Mapping) for one in prompt):
        raise TypeError(f"column 'prompt' is {prompt!r:.80}; give a text or a list of messages with role and content")
    return [{**one, "content": text_of(one.get("content"), "column 'prompt'")} for one in prompt]


def text_of(content: Any, source: str) -> str:
    """Returns a message's content, which may be `None`, a text, or blocks of text, as text.

    Raises:
        TypeError: for anything else, images among it.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if is_blocks(content):
        other = next((block["type"] for block in content if block["type"] != "text"), None)
        if other is not None:
            raise TypeError(f"{source} holds a block of type {other!r}; only text is supported, images are not")
        return "".join(str(block.get("text", "")) for block in content)
    hint = ""
    if hasattr(content, "observation") and hasattr(content, "done"):
        hint = "; for a client of OpenEnv pass alignopsd_trl.environments.adapters.OpenEnvEnvironment(connect)"
    raise TypeError(f"{source} is {content!r:.80} ({type(content).__name__}); return a str or None{hint}")


def is_blocks(value: Any) -> bool:
    """Whether a value is content in blocks, as in a chat message."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "type" in one for one in value)

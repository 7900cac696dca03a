"""Rows of a dataset that was made for TRL: their task ids and first messages."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_MADE = re.compile(r"row-[0-9a-f]{16}")
DEEPEST = 64  # levels of lists and objects in a request, and in the arguments of a call
DEVELOPER = "developer"  # OpenAI's word for a role that chat templates know as system


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

    Arrow gives each mapping the fields of all, so that a `None` in one says nothing and is left out. A `None` in a list
    stays; to say null elsewhere, give the arguments of a call as JSON text.

    Raises:
        TypeError: if the prompt is neither text nor messages.
        ValueError: if the arguments of a call are no JSON object.
    """
    prompt = row.get("prompt", "")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(message, Mapping) for message in prompt):
        raise TypeError(f"column 'prompt' is {prompt!r:.80}; give a text or a list of messages with role and content")
    return [_message(message, f"column 'prompt', message {place}") for place, message in enumerate(prompt)]


def _message(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    made: dict[str, Any] = {**_filled(given), "content": text_of(given.get("content"), "column 'prompt'")}
    made |= {"role": "system"} if given.get("role") == DEVELOPER else {}
    for call in made.get("tool_calls", ()):
        function = call.get("function", call)
        arguments = function["arguments"] = arguments_of(function.get("arguments"))
        if not isinstance(arguments, dict):
            raise ValueError(f"{source}: a call has the arguments {arguments!r:.80}; give a JSON object")
    return made


def _filled(value: Any) -> Any:
    """Returns a value without the fields of mappings that are `None`."""
    if isinstance(value, Mapping):
        return {name: _filled(part) for name, part in value.items() if part is not None}
    return [_filled(part) for part in value] if isinstance(value, list | tuple) else value


def arguments_of(given: Any) -> Any:
    """Returns the arguments of a past call as an object, whether they are one or its JSON; without any, an empty one.
    All else, and what is too deep for a template, is returned as it is: no two chat templates would show it alike."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    try:
        arguments = json.loads(given) if isinstance(given, str) else given
        json.dumps(arguments, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError):
        return given
    return arguments if isinstance(arguments, dict) and not is_deep(arguments) else given


def is_deep(value: Any, left: int = DEEPEST) -> bool:
    """Whether a JSON value has more levels than templates and parsers, which call themselves, may get."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not left or any(is_deep(part, left - 1) for part in inside)


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

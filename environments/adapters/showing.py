"""Shows tools and their results to a policy that answers in text: in one user message, with any chat template."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignopsd_trl.environments.base import Chat, Record, View
from alignopsd_trl.environments.declared import name_of

RULES = """\
Think between <think> and </think>. Then call tools between <action> and </action>, with literal arguments, for example
<action>{example}</action>
Several calls go on lines of their own and are executed in this order. An answer without <action> ends the task."""


@dataclass(frozen=True)
class Dialogue:
    """The first messages of an episode and what was said since.

    Args:
        messages (`tuple[Mapping]`): of the prompt.
        tools (`tuple`): texts or JSON schemas, as in the prompt.
        example (`str`): a call of one of the tools.
        said (`list[list[Mapping]]`): messages of each turn so far, the response and the results of tools.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Any, ...] = ()
    example: str = ""
    said: list[list[Mapping[str, Any]]] = field(default_factory=list)


class ToolPrompt:
    """Renders the last user message: the task, the skill, the tools with their docstrings, and the last turns with the
    results of their calls. Earlier messages of the dataset's prompt stay."""

    name = "tools"
    native = False

    def render(self, view: View, skill: str = "") -> str | list[Mapping[str, Any]]:
        start: Dialogue = view.context
        *before, last = start.messages
        shown = [last["content"].strip(), skill]
        if start.tools:
            shown += ["Tools:\n\n" + "\n\n".join(start.tools), RULES.format(example=start.example)]
        text = "\n\n".join(filter(None, [*shown, _past(view)]))
        return [*before, {**last, "content": text}] if before or last["role"] != "user" else text

    def reply(self, view: View) -> str:
        return view.observation


class NativePrompt:
    """Renders the dataset's messages, the tools as the chat template shows them, and the last turns as messages. The
    skill ends the last message of the dataset's prompt."""

    name = "native_tools"
    native = True

    def render(self, view: View, skill: str = "") -> Chat:
        start: Dialogue = view.context
        *before, last = start.messages
        content = "\n\n".join(filter(None, [last["content"], skill])) if skill else last["content"]
        past = [message for record in view.history for message in start.said[record.number - 1]]
        return Chat([*before, {**last, "content": content}, *past], start.tools)

    def reply(self, view: View) -> list[Mapping[str, Any]]:
        return view.context.said[-1][1:]


def _past(view: View) -> str:
    records = view.history
    if not records:
        return f"Returned before this turn:\n{view.observation}" if view.step_count else ""
    hidden = view.step_count - len(records)
    lines = [f"({hidden} earlier turns are not shown.)"] if hidden else []
    return "\n".join(["What you did so far:", *lines, *map(_turn, records)])


def _turn(record: Record) -> str:
    return f"<action>{record.action}</action>\n{record.result}"


def describe(tool: Callable) -> str:
    """Returns a tool as ``name(parameter: type = default) -> type`` with its docstring."""
    doc = inspect.getdoc(tool) or ""
    lines = [f"{name_of(tool)}{signature_of(tool)}", *(f"    {line}".rstrip() for line in doc.splitlines())]
    return "\n".join(lines)


def signature_of(tool: Callable) -> inspect.Signature:
    """Returns a tool's signature, without quotes around annotations whose names are known."""
    try:
        return inspect.signature(tool, eval_str=True)
    except (NameError, TypeError, SyntaxError, AttributeError):
        return inspect.signature(tool)


def example_of(tools: Sequence[Callable]) -> str:
    """Returns a call of the first tool with its required arguments left open."""
    if not tools:
        return ""
    parameters = signature_of(tools[0]).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return f"{name_of(tools[0])}({', '.join(f'{name}=...' for name in needed)})"


def shown_observation(observation: Any) -> str:
    """Returns an observation of any class as text: its fields but ``done``, ``reward`` and ``metadata``, one per line;
    the text alone if it is the only field."""
    if isinstance(observation, str):
        return observation
    fields = _plain(observation)
    if fields is None:
        return str(observation)
    kept = {n: v for n, v in fields.items() if n not in ("done", "reward", "metadata") and v not in (None, "", [], {})}
    if len(kept) == 1 and isinstance(text := next(iter(kept.values())), str):
        return text
    return "\n".join(f"{name}: {v if isinstance(v, str) else json.dumps(v, default=str)}" for name, v in kept.items())


def _plain(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else None

"""How tools and what came of them are shown to a policy that answers in text: one user message, any chat template."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.base import Record, View

RULES = """\
Think between <think> and </think>. Then call tools between <action> and </action>, with literal arguments, for example
<action>{example}</action>
Several calls go on lines of their own and are executed in this order. An answer without <action> ends the task."""


@dataclass(frozen=True)
class Conversation:
    """What an episode starts from: the messages of its prompt, and its tools as the prompt shows them."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Any, ...] = ()
    example: str = ""


class ToolPrompt:
    """The task, the skill, the tools with their docstrings, and the last turns with what their calls returned."""

    name = "tools"

    def render(self, view: View, skill: str = "") -> str:
        start: Conversation = view.context
        shown = [*(text for message in start.messages if (text := _worded(message, len(start.messages)))), skill]
        if start.tools:
            shown += ["Tools:\n\n" + "\n\n".join(start.tools), RULES.format(example=start.example)]
        return "\n\n".join(filter(None, [*shown, _past(view)]))


def _worded(message: Mapping[str, Any], count: int) -> str:
    """A message's text, under its role where a conversation has several answers in it."""
    text = message["content"].strip()
    plain = message["role"] in ("system", "developer", "user") or count == 1
    return text if plain or not text else f"{message['role']}: {text}"


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
    """A tool as ``name(parameter: type = default) -> type`` and its docstring."""
    doc = inspect.getdoc(tool) or ""
    lines = [f"{tool.__name__}{signature_of(tool)}", *(f"    {line}".rstrip() for line in doc.splitlines())]
    return "\n".join(lines)


def signature_of(tool: Callable) -> inspect.Signature:
    """Without quotes around annotations, where their names are known."""
    try:
        return inspect.signature(tool, eval_str=True)
    except (NameError, TypeError, SyntaxError, AttributeError):
        return inspect.signature(tool)


def example_of(tools: Sequence[Callable]) -> str:
    """A call of the first tool, with its required arguments left open."""
    if not tools:
        return ""
    parameters = signature_of(tools[0]).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return f"{tools[0].__name__}({', '.join(f'{name}=...' for name in needed)})"

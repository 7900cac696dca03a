"""Finds, parses and writes the tool calls of a response.

A policy that answers in text writes ``<action>move(direction="left")</action>``: Python calls with literal arguments,
one per line. Calls as JSON between ``<tool_call>`` tags, which many models write all the same, are taken too.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BLOCK = re.compile(r"<(action|tool_call)>((?:(?!<\1>).)*?)</\1>", re.DOTALL | re.IGNORECASE)  # in linear time
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_SOURCE = "<action>"
warnings.filterwarnings("ignore", category=SyntaxWarning, module=_SOURCE)  # a policy writes no code
_WORDS = {"true": True, "false": False, "null": None}  # JSON's, which models mix in


@dataclass(frozen=True)
class Call:
    """One call: the tool's name, positional and named arguments."""

    name: str
    places: tuple[Any, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        arguments = [*map(repr, self.places), *(f"{name}={value!r}" for name, value in self.names.items())]
        return f"{self.name}({', '.join(arguments)})"


def calls_in(response: str) -> str:
    """Returns the calls of a response as text for `read_calls`: the insides of its blocks, one per line. Empty without
    a whole block. Blocks inside of its thinking do not count."""
    thought = _THOUGHT.match(response)
    blocks = _BLOCK.finditer(response, thought.end() if thought else 0)
    return "\n".join(filter(None, (_as_python(block[2].strip()) for block in blocks)))


def without_calls(response: str) -> str:
    """Returns a response without its thinking and its calls."""
    thought = _THOUGHT.match(response)
    return _BLOCK.sub("", response[thought.end() if thought else 0 :]).strip()


def text_before_calls(response: str) -> str:
    """Returns the text of a response before its first call; empty without a call."""
    block = _BLOCK.search(response)
    return response[: block.start()].strip() if block else ""


def calls_of(message: Mapping[str, Any]) -> list[Call]:
    """Returns the calls of an assistant's message, in either form that parsers produce."""
    asked = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return [Call(str(call.get("name")), (), call.get("arguments") or {}) for call in asked]


def message_of(response: str) -> dict[str, Any]:
    """Returns a response as a chat template with tools shows it; `calls_of` reads the calls again.

    Raises:
        ValueError: if a call can't be read, or does not name its arguments.
    """
    calls, thought = read_calls(calls_in(response)), _THOUGHT.match(response)
    unnamed = next((call for call in calls if call.places), None)
    if unnamed is not None:
        raise ValueError(f"{unnamed} must name its arguments")
    message: dict[str, Any] = {"role": "assistant", "content": without_calls(response)}
    if thought:
        message["reasoning_content"] = thought[0].strip()[len("<think>") : -len("</think>")].strip()
    if calls:
        functions = [{"name": call.name, "arguments": dict(call.names)} for call in calls]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return message


def _as_python(body: str) -> str:
    """Converts a call in JSON to a Python call; any other text is returned unchanged."""
    if not body.startswith("{"):
        return body
    try:
        content = json.loads(body)
        return str(Call(content["name"], (), dict(content.get("arguments") or {})))
    except (ValueError, TypeError, KeyError, RecursionError):
        return body


def read_calls(text: str) -> list[Call]:
    """Parses the calls of a text, in order.

    Raises:
        ValueError: if a part is no call with literal arguments; quotes the part.
    """
    try:
        return [_call(statement) for statement in ast.parse(text.strip(), _SOURCE).body]
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{_short(text)} can't be read: {getattr(error, 'msg', None) or error}") from None


def _call(statement: ast.stmt) -> Call:
    node = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(node, ast.Call):
        raise ValueError(f'{_short(ast.unparse(statement))} is no call; write tool(name="value")')
    names = {}
    for argument in node.keywords:
        if argument.arg is None:
            raise ValueError(f"{_short(ast.unparse(node))}: write the arguments out in place of **")
        names[argument.arg] = _literal(argument.value)
    return Call(ast.unparse(node.func), tuple(map(_literal, node.args)), names)


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(f"{_short(ast.unparse(node))} is no literal; give strings in quotes, numbers, lists") from None


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."

"""Reads the messages of a request as chat templates show them: past calls as objects, their results in order."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.rows import DEEPEST, DEVELOPER, arguments_of, is_deep, text_of

Message = Mapping[str, Any]
UNSAID = ("function_call", "audio", "refusal", "prefix", "partial")
"""Fields of a message that no chat template shows."""


def read_messages(messages: Sequence[Message], written: Collection[str] = ()) -> list[dict[str, Any]]:
    """Returns the messages of a request with text alone, arguments as objects, and no ids.

    Args:
        written: texts of arguments that the policy wrote and that are no objects. It is to blame for them.

    Raises:
        Refused: names the message that can't be shown, or the call and the result that do not belong together.
    """
    made: list[dict[str, Any]] = []
    while (place := len(made)) < len(messages):
        calls: Sequence[Message] = ()
        if messages[place]["role"] != "tool":
            made.append(_read(messages[place], f"messages[{place}]", written))
            calls = messages[place].get("tool_calls") or ()
        first = len(made)
        results = [*takewhile(lambda one: one["role"] == "tool", messages[first:])]
        order = _order(calls, results, place, first)
        made += [_read(results[number], f"messages[{first + number}]", written) for number in order]
    return made


def _read(message: Message, place: str, written: Collection[str]) -> dict[str, Any]:
    names = UNSAID if message["role"] == "assistant" else (*UNSAID, "tool_calls")
    if unsaid := next((name for name in names if message.get(name)), None):
        told = f"{place}.{unsaid} is {message[unsaid]!r:.80}, which the policy can't be shown; leave it out"
        raise Refused(told, "unsupported_value", param=f"{place}.{unsaid}")
    try:
        made = plain_message(message)
    except TypeError as error:
        raise Refused(f"{place}: {error}", param=f"{place}.content") from error
    for number, one in enumerate(made.get("tool_calls", ())):
        given = one["function"]["arguments"]
        if not isinstance(given, dict) or is_deep(given):
            call = f"{place}.tool_calls[{number}]"
            told = f"{call} has the arguments {given!r:.80}; they must be a JSON object of at most {DEEPEST} levels"
            blame = "tool_use_failed" if arguments_text(given) in written else "invalid_value"
            raise Refused(told, blame, param=f"{call}.function.arguments")
    return made


def plain_message(message: Message) -> dict[str, Any]:
    """Returns what a chat template reads of a message. Arguments of calls that are no objects stay as they are.

    Raises:
        TypeError: for content other than text.
    """
    role = "system" if message["role"] == DEVELOPER else message["role"]
    made: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), f"a message of {role!r}")}
    thinking = message.get("reasoning_content") or message.get("reasoning")
    made |= {name: one for name, one in (("name", message.get("name")), ("reasoning_content", thinking)) if one}
    calls = [one.get("function", one) for one in message.get("tool_calls") or ()]
    if calls:
        functions = [{"name": one.get("name"), "arguments": arguments_of(one.get("arguments"))} for one in calls]
        made["tool_calls"] = [{"type": "function", "function": one} for one in functions]
    return made


def arguments_text(arguments: Any) -> str:
    """Returns arguments as the API writes them, as JSON: many clients parse them at once."""
    try:
        json.loads(arguments)
        return arguments
    except (TypeError, ValueError, RecursionError):
        return json.dumps(arguments, ensure_ascii=False)


def _order(calls: Sequence[Message], results: Sequence[Message], place: int, first: int) -> list[int]:
    """Returns the order of a message's results that is that of its calls. Where neither has an id, it is as given.

    Args:
        place: of the message with the calls.
        first: of the first result.
    """
    ids, given = [one.get("id") for one in calls], [one.get("tool_call_id") for one in results]
    if not any(ids) and not any(given) and len(ids) == len(given):
        return [*range(len(given))]
    for number, one in enumerate(given):
        param = f"messages[{first + number}].tool_call_id"
        if not one or one not in ids or one in given[:number]:
            why = "a second result of that call" if one in ids else "the message before it has no such call"
            raise Refused(f"{param} is {one!r}: {why}" if one else f"{param} is missing", param=param)
    for number, one in enumerate(ids):
        call = f"messages[{place}].tool_calls[{number}]"
        if one in ids[:number]:
            raise Refused(f"{call}.id is {one!r}, as that of another call of the message", param=f"{call}.id")
        if one not in given:
            raise Refused(f"{call} (id {one!r}) has no result in the messages after it", param=call)
    return sorted(range(len(given)), key=lambda number: ids.index(given[number]))


def behind_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Moves each result behind the message with its call: the Responses API has them in any place."""
    made: list[dict[str, Any]] = []
    for one in messages:
        place = len(made)
        if one["role"] == "tool":
            name = one["tool_call_id"]
            asked = (n for n in reversed(range(place)) if name in [c["id"] for c in made[n].get("tool_calls", ())])
            place = next(asked, place - 1) + 1
            while place < len(made) and made[place]["role"] == "tool":
                place += 1
        made.insert(place, one)
    return made

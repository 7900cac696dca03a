"""Reads requests for chat completions: what the policy sees, and what is asked beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from alignopsd_trl.environments.adapters.rows import text_of

logger = logging.getLogger(__name__)
Body = Mapping[str, Any]
SETTINGS = ("temperature", "top_p")  # the run has them too
UNKNOWN = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p"), 0),
    **dict.fromkeys(("logit_bias", "logprobs", "top_logprobs", "top_k", "functions"), None),
    "repetition_penalty": 1,
}
"""Fields that no sampler here takes, with the value that asks for nothing."""


class Refused(Exception):  # noqa: N818 (no fault of the program)
    """A request that gets the API's error.

    Attributes:
        status, code: as in OpenAI's errors.
    """

    def __init__(self, message: str, code: str = "invalid_value", status: int = 400):
        super().__init__(message)
        self.code, self.status = code, status


def plain_message(message: Any) -> dict[str, Any]:
    """Returns what a chat template reads of a message: text alone, arguments as objects, no ids."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise Refused(f"messages holds {message!r:.80}; a message has a role and content")
    role = "system" if message["role"] == "developer" else message["role"]
    try:
        made: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), f"a message of {role!r}")}
    except TypeError as error:
        raise Refused(str(error)) from error
    made |= {name: message[name] for name in ("name", "reasoning_content") if message.get(name)}
    calls = [one.get("function", one) for one in message.get("tool_calls") or ()]
    if calls:
        functions = [{"name": one.get("name"), "arguments": _arguments(one.get("arguments"))} for one in calls]
        made["tool_calls"] = [{"type": "function", "function": one} for one in functions]
    return made


def _arguments(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given or {}
    except ValueError:
        return given


def without_reasoning(messages: Sequence[Body]) -> list[dict[str, Any]]:
    """Returns messages as dialogues are compared: many agents send no reasoning back."""
    return [{name: value for name, value in one.items() if name != "reasoning_content"} for one in messages]


@dataclass(frozen=True)
class Rules:
    """Whether requests may have tools, and whether settings of sampling are ignored in place of refused."""

    native: bool
    ignores: bool


@dataclass(eq=False)
class Ask:
    """A request for one response.

    Attributes:
        must: the tool that has to be called (`tool_choice`), `""` for any; `None`: none has to.
        answer: gets the choice of the completion.
        follows, new, place: of `Wishes`, and the messages after the turn that it continues. Set when it is its turn.
        said: the response as a message.
    """

    messages: list[dict[str, Any]]
    tools: list[Any]
    trained: bool = True
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    schema: Body | None = None
    must: str | None = None
    answer: Future[dict[str, Any]] = field(default_factory=Future)
    follows: int | None = None
    new: list[dict[str, Any]] = field(default_factory=list)
    place: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    def after(self, earlier: Ask) -> list[dict[str, Any]] | None:
        """Returns the messages after those of an earlier request and its response; `None` if it does not go on from
        there."""
        count = len(earlier.messages) + 1
        if len(self.messages) <= count or self.tools != earlier.tools:
            return None
        same = without_reasoning(self.messages[:count]) == without_reasoning([*earlier.messages, earlier.said])
        return self.messages[count:] if same else None


def asks_of(body: Body, rules: Rules, trained: bool = True) -> list[Ask]:
    """Reads a request, one `Ask` for each of its ``n`` responses.

    Raises:
        Refused: for what can't be answered, with the remedy.
    """
    messages = body.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Refused(f"messages is {messages!r:.80}; give a list of messages")
    if rules.ignores:
        foreign = _foreign(body)
        _tell_ignored(tuple(sorted(foreign)))
        body = {name: value for name, value in body.items() if name not in foreign}
    choice = body.get("tool_choice")
    tools = [] if choice == "none" else [_tool(one) for one in body.get("tools") or ()]
    if tools and not rules.native:
        raise Refused("format='text' takes no tools; use AgentEnvironment(..., format='native')")
    count, stop = body.get("n") or 1, body.get("stop") or ()
    if not isinstance(count, int) or not 1 <= count <= 128:
        raise Refused(f"n={count!r} must be between 1 and 128")
    given = dict[str, Any](
        tools=tools,
        trained=trained,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        settings=_settings(body),
        schema=_schema(body),
        must=_must(choice),
    )
    return [Ask([plain_message(one) for one in messages], **given) for _ in range(count)]


@cache
def _tell_ignored(names: Sequence[str]) -> None:
    if names:
        logger.warning(f"sampling='ignore' leaves {', '.join(names)} out of an agent's requests")


def _foreign(body: Body) -> set[str]:
    """Returns the fields of a request that ask for other sampling than the run's."""
    unknown = {name for name, nothing in UNKNOWN.items() if body.get(name, nothing) not in (nothing, None, False)}
    formed = (body.get("response_format") or {}).get("type", "text") != "text"
    return (
        unknown | {name for name in SETTINGS if body.get(name) is not None} | ({"response_format"} if formed else set())
    )


def _settings(body: Body) -> dict[str, float]:
    unknown = sorted(_foreign(body) - {*SETTINGS, "response_format"})
    if unknown:
        raise Refused(
            f"{unknown[0]}={body[unknown[0]]!r} can't be sampled here; leave it out, or use "
            "AgentEnvironment(..., sampling='ignore')",
            "unsupported_parameter",
        )
    return {name: float(body[name]) for name in SETTINGS if body.get(name) is not None}


def _schema(body: Body) -> Body | None:
    asked = body.get("response_format") or {}
    if asked.get("type", "text") == "text":
        return None
    if asked.get("type") != "json_schema":
        raise Refused(f"response_format {asked.get('type')!r} can't be sampled; give a schema", "unsupported_value")
    return asked["json_schema"]["schema"]


def _must(choice: Any) -> str | None:
    if isinstance(choice, Mapping):
        return str((choice.get("function") or {}).get("name", ""))
    return "" if choice == "required" else None


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise Refused(f"tools holds {tool!r:.80}; only functions can be called")
    return {"type": "function", "function": {name: value for name, value in function.items() if name != "strict"}}

"""Reads requests for chat completions: what the policy sees, and what is asked beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.schema import ChatRequest, check
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


def plain_message(message: Body) -> dict[str, Any]:
    """Returns what a chat template reads of a message: text alone, arguments as objects, no ids."""
    role = "system" if message["role"] == "developer" else message["role"]
    try:
        made: dict[str, Any] = {"role": role, "content": text_of(message.get("content"), f"a message of {role!r}")}
    except TypeError as error:
        raise Refused(str(error), param="messages") from error
    made |= {name: message[name] for name in ("name", "reasoning_content") if message.get(name)}
    calls = [one.get("function", one) for one in message.get("tool_calls") or ()]
    if calls:
        functions = [{"name": one.get("name"), "arguments": _arguments(one.get("arguments"))} for one in calls]
        made["tool_calls"] = [{"type": "function", "function": one} for one in functions]
    return made


def _arguments(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given or {}
    except (ValueError, RecursionError):
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
        single: whether its caller takes one call at most (`parallel_tool_calls`).
        waits: whether the caller is still there.
        answer: gets the choice of the completion.
        choices: the request's `Ask`s, of which this is one.
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
    single: bool = False
    waits: Callable[[], bool] = lambda: True
    answer: Future[dict[str, Any]] = field(default_factory=Future)
    follows: int | None = None
    new: list[dict[str, Any]] = field(default_factory=list)
    place: str = ""
    said: dict[str, Any] = field(default_factory=dict)
    choices: list[Ask] = field(default_factory=list)

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
    check(ChatRequest, body)
    if rules.ignores:
        foreign = _foreign(body)
        _tell_ignored(tuple(sorted(foreign)))
        body = {name: value for name, value in body.items() if name not in foreign}
    tools, must = _tools(body)
    if tools and not rules.native:
        raise Refused("format='text' takes no tools; use AgentEnvironment(..., format='native')", param="tools")
    stop = body.get("stop") or ()
    given = dict[str, Any](
        tools=tools,
        trained=trained,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        settings=_settings(body),
        schema=_schema(body),
        must=must,
        single=body.get("parallel_tool_calls") is False,
    )
    asks = [Ask([plain_message(one) for one in body["messages"]], **given) for _ in range(body.get("n") or 1)]
    for one in asks:
        one.choices = asks
    return asks


@cache
def _tell_ignored(names: Sequence[str]) -> None:
    if names:
        logger.warning(f"sampling='ignore' leaves {', '.join(names)} out of an agent's requests")


def _foreign(body: Body) -> set[str]:
    """Returns the fields of a request that ask for other sampling than the run's."""
    unknown = {name for name, nothing in UNKNOWN.items() if (body.get(name) or nothing) != nothing}
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
            param=unknown[0],
        )
    return {name: float(body[name]) for name in SETTINGS if body.get(name) is not None}


def _schema(body: Body) -> Body | None:
    asked = body.get("response_format") or {}
    if asked.get("type", "text") == "text":
        return None
    if asked["type"] != "json_schema" or not asked.get("json_schema"):
        told = f"response_format {asked['type']!r} can't be sampled; give a schema"
        raise Refused(told, "unsupported_value", param="response_format")
    return asked["json_schema"]["schema"]


def _tools(body: Body) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the tools on offer, and the one that has to be called (`Ask.must`). Of ``allowed_tools`` the policy sees
    those alone."""
    choice, tools = body.get("tool_choice"), [_tool(one["function"]) for one in body.get("tools") or ()]
    if choice in (None, "auto", "none"):
        return [] if choice == "none" else tools, None
    allowed = choice.get("allowed_tools") if isinstance(choice, Mapping) else None
    named = allowed["tools"] if allowed else [choice] if isinstance(choice, Mapping) else []
    known, names = {one["function"]["name"] for one in tools}, [one["function"]["name"] for one in named]
    if not known.issuperset(names) or not tools:
        raise Refused(f"tool_choice is {choice!r:.80}, and tools has no such function", param="tool_choice")
    if allowed is None:
        return tools, names[0] if names else ""
    offered = [one for one in tools if one["function"]["name"] in names]
    return offered, "" if allowed["mode"] == "required" else None


def _tool(function: Body) -> dict[str, Any]:
    """Returns a tool as chat templates show it, in one order of its fields: no two APIs write the same one."""
    order = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
    rest = {name: value for name, value in function.items() if name not in ("strict", *order) and value is not None}
    return {"type": "function", "function": order | rest}

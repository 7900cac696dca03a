"""Reads requests for chat completions: what the policy sees, and what is asked beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from alignopsd_trl.environments.adapters.agents.messages import read_messages
from alignopsd_trl.environments.adapters.agents.refusal import Refused
from alignopsd_trl.environments.adapters.agents.schema import INERT, NOTHING, ChatRequest, check

logger = logging.getLogger(__name__)
Body = Mapping[str, Any]
SETTINGS = ("temperature", "top_p")  # the run has them too
VARIABLES = ("reasoning_effort", "enable_thinking")  # of chat templates, as fields of their own


def without_reasoning(messages: Sequence[Body]) -> list[dict[str, Any]]:
    """Returns messages as dialogues are compared: many agents send no reasoning back."""
    return [{name: value for name, value in one.items() if name != "reasoning_content"} for one in messages]


@dataclass(frozen=True)
class Rules:
    """Whether requests may have tools, whether fields that ask for another prompt or sampling than the run's are
    ignored in place of refused, and which requests are trained."""

    native: bool
    ignores: bool
    trains: Callable[[Body], bool] = lambda request: True


@dataclass(eq=False)
class Ask:
    """A request for one response.

    Attributes:
        variables: of the chat template, beside the run's.
        must: the tool that has to be called (`tool_choice`), `""` for any; `None`: none has to.
        single: whether its caller takes one call at most (`parallel_tool_calls`).
        waits: whether the caller is still there.
        answer: gets the choice of the completion.
        at: when it came, by the clock `time.monotonic`.
        choices: the request's `Ask`s, of which this is one.
        follows, new, place: of `Wishes`, and the messages after the turn that it continues. Set when it is its turn.
        said: the response as a message.
    """

    messages: list[dict[str, Any]]
    tools: list[Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
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
    at: float = field(default_factory=time.monotonic)

    def after(self, earlier: Ask) -> list[dict[str, Any]] | None:
        """Returns the messages after those of an earlier request and its response; `None` if it does not go on from
        there."""
        count = len(earlier.messages) + 1
        if len(self.messages) <= count or (self.tools, self.variables) != (earlier.tools, earlier.variables):
            return None
        same = without_reasoning(self.messages[:count]) == without_reasoning([*earlier.messages, earlier.said])
        return self.messages[count:] if same else None


def asks_of(body: Body, rules: Rules, trained: bool = True, written: Collection[str] = ()) -> list[Ask]:
    """Reads a request, one `Ask` for each of its ``n`` responses.

    Args:
        written: as in `read_messages`.

    Raises:
        Refused: for what can't be answered, with the remedy.
    """
    check(ChatRequest, body)
    body = _of_the_run(body, rules)
    tools, must = _tools(body)
    if tools and not rules.native:
        raise Refused("format='text' takes no tools; use AgentEnvironment(..., format='native')", param="tools")
    stop, messages = body.get("stop") or (), read_messages(body["messages"], written)
    variables = {name: body[name] for name in VARIABLES if body.get(name) is not None}
    given = dict[str, Any](
        tools=tools,
        variables={**(body.get("chat_template_kwargs") or {}), **variables},
        trained=trained,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens=min(filter(None, map(body.get, ("max_completion_tokens", "max_tokens"))), default=None),
        settings={name: float(body[name]) for name in SETTINGS if body.get(name) is not None},
        schema=_schema(body),
        must=must,
        single=body.get("parallel_tool_calls") is False,
    )
    asks = [Ask(list(messages), **given) for _ in range(body.get("n") or 1)]
    for one in asks:
        one.choices = asks
    return asks


@cache
def _tell_ignored(names: Sequence[str]) -> None:
    if names:
        logger.warning(f"sampling='ignore' leaves {', '.join(names)} out of an agent's requests")


def _of_the_run(body: Body, rules: Rules) -> Body:
    """Returns a request without the fields that change nothing, and, where the rules ignore them, without those that
    ask for another prompt or sampling than the run's.

    Raises:
        Refused: for a field that nothing here can honour.
    """
    asking = {name for name, value in body.items() if value is not None and value not in NOTHING.get(name, ())}
    unknown = sorted(asking - {*ChatRequest.model_fields, *INERT})
    if rules.ignores:
        formed = (body.get("response_format") or {}).get("type", "text") != "text"
        own = {*SETTINGS, *VARIABLES, "chat_template_kwargs"} | ({"response_format"} if formed else set())
        _tell_ignored(tuple(sorted({*unknown, *(asking & own)})))
        asking -= own
    elif unknown:
        raise Refused(
            f"{unknown[0]}={body[unknown[0]]!r:.80} can't be honoured here; leave it out, or use "
            "AgentEnvironment(..., sampling='ignore')",
            "unsupported_parameter",
            param=unknown[0],
        )
    return {name: value for name, value in body.items() if name in asking}


def callable_tools(body: Body, kinds: Sequence[str | None], ignores: bool) -> list[Any]:
    """Returns a request's tools but those that a host would run, of other types than ``kinds``.

    Raises:
        Refused: for the first of these, unless they are ignored.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise Refused(f"tools is {tools!r:.80}; send a list", "invalid_type", param="tools")
    types = [one.get("type") if isinstance(one, Mapping) else kinds[0] for one in tools]
    for place, kind in enumerate(types):
        if kind not in kinds and not ignores:
            told = f"tools[{place}] is of type {kind!r}, which only its host could run; "
            told += HOSTED.get(str(kind), "leave it out") + ", or use AgentEnvironment(..., sampling='ignore')"
            raise Refused(told, "unsupported_value", param=f"tools[{place}].type")
    _tell_ignored(tuple(sorted({f"tools of type {kind!r}" for kind in types if kind not in kinds})))
    return [one for one, kind in zip(tools, types, strict=True) if kind in kinds]


HOSTED = {"web_search": 'leave it out, for codex by web_search = "disabled" in its config.toml'}
"""Remedies by the type of a tool."""


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
    offered = [one["function"]["name"] for one in tools]
    if twice := next((name for place, name in enumerate(offered) if name in offered[:place]), None):
        place = f"tools[{len(offered) - 1 - offered[::-1].index(twice)}].function.name"
        raise Refused(f"{place} is {twice!r}, as that of another tool", param=place)
    if choice in (None, "auto", "none"):
        return [] if choice == "none" else tools, None
    allowed = choice.get("allowed_tools") if isinstance(choice, Mapping) else None
    named = allowed["tools"] if allowed else [choice] if isinstance(choice, Mapping) else []
    names = [one["function"]["name"] for one in named]
    if not {*offered}.issuperset(names) or not tools:
        raise Refused(f"tool_choice is {choice!r:.80}, and tools has no such function", param="tool_choice")
    if allowed is None:
        return tools, names[0] if names else ""
    return [one for one in tools if one["function"]["name"] in names], "" if allowed["mode"] == "required" else None


def _tool(function: Body) -> dict[str, Any]:
    """Returns a tool as chat templates show it, in one order of its fields: no two APIs write the same one."""
    order = {name: function[name] for name in ("name", "description", "parameters") if function.get(name) is not None}
    rest = {name: value for name, value in function.items() if name not in ("strict", *order) and value is not None}
    return {"type": "function", "function": order | rest}

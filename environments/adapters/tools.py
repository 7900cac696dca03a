"""An environment around a class that was written for TRL's ``environment_factory``: tools as methods, no ``done``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from alignopsd_trl.environments.adapters.adapted import AdaptedEnvironment
from alignopsd_trl.environments.adapters.calls import Call, calls_in, calls_of, read_calls
from alignopsd_trl.environments.adapters.rows import is_blocks, is_row_id, messages_of, text_of
from alignopsd_trl.environments.adapters.showing import (
    Dialogue,
    NativePrompt,
    ToolPrompt,
    describe,
    example_of,
    signature_of,
)
from alignopsd_trl.environments.adapters.types import check_arguments, is_address
from alignopsd_trl.environments.adapters.waiting import OwnThread, settled
from alignopsd_trl.environments.base import Ending, EnvironmentsDown, Opening, Projection, Step, text_of_error
from alignopsd_trl.environments.declared import SHARED, concurrency, name_of, names_seed, reset_names
from alignopsd_trl.environments.generators import kept

HARBOR = "trl.experimental.harbor"
SESSIONS = (HARBOR, "trl.experimental.openreward")
"""Modules whose classes open a sandbox or a session of a server at each `reset`."""
Factory = Callable[[], Any]
Success = Callable[[Any, float | None], bool | None]


class ToolEnvironment(AdaptedEnvironment):
    """Plays a class of TRL's convention (`reset`, tools as public methods, perhaps `get_reward`) turn by turn.

    An episode ends at a response without a call, at the environment's own attribute ``done`` if it has one, or at the
    turn limit. The calls of a response run in order. If a tool raises, the policy gets ``{"error": ...}`` and the turn
    counts as invalid. A call of such an object makes another one like it, so that it is a factory as well.

    Args:
        factory (`Callable[[], Any]` or `dict[str, Callable]`, *optional*):
            Makes an object of the class without arguments; a dict has a factory for each value of the dataset's column
            ``environment``. `None`: plain functions alone.
        tools (`Sequence[Callable]`, *optional*):
            Functions, also asynchronous ones, that every episode offers beside the environment's methods.
        format (`str`, *optional*, defaults to `"text"`):
            ``"text"``: the user message shows signatures and docstrings, calls are Python between ``<action>`` tags;
            for any chat template. ``"native"``: the chat template shows the tools and the tokenizer's own parser reads
            the calls, as in TRL; for templates with tools.
        success (`Callable[[Any, float | None], bool | None]`, *optional*):
            The environment and the result of its `get_reward` (`None` if it has none) -> whether the episode was won.
            By default that is unknown, and evaluations report the score alone.
        score (`Callable[[Any], float]`, *optional*):
            The environment -> the number that evaluations report; by default the result of `get_reward`.
        max_turns (`int`, *optional*, defaults to 50):
            Turns of an episode at most.
        history_length (`int`, *optional*, defaults to 8):
            Past turns that the prompt shows at most.
        max_tool_calling_iterations (`int`, *optional*):
            As in TRL, the number of rounds of calls. One more response follows, whose calls are not run.
        seeded (`bool`, *optional*, defaults to `False`):
            Whether the dataset has a column ``seed`` of its own. If not, a parameter ``seed`` of `reset` gets the seed
            of the sibling group. A parameter ``dynamics_seed`` gets a seed of the sibling's own.

    Raises:
        TypeError: if a factory can't be called, or its object has no `reset`.
        ValueError: for another ``format``, or a tool without a schema because types or a docstring are missing.

    Attributes:
        concurrent: whether all classes and functions declare that their calls may run at once (``concurrent = True``;
            a coroutine function of ``tools`` does so by being one).
        environment: the object that plays this episode, which TRL passes to reward functions; `None` without one.
        messages (`list[dict]`): the prompt's messages, with the result of `reset` at their end.
    """

    def __init__(
        self,
        factory: Factory | Mapping[str, Factory] | _Pool | None = None,
        tools: Sequence[Callable] = (),
        format: str = "text",
        success: Success | None = None,
        *,
        score: Callable[[Any], float] | None = None,
        max_turns: int = 50,
        history_length: int = 8,
        max_tool_calling_iterations: int | None = None,
        seeded: bool = False,
    ):
        self._pool = factory if isinstance(factory, _Pool) else _Pool(factory)
        self.options = dict(factory=self._pool, tools=tools, format=format, success=success, score=score, seeded=seeded)
        self.options |= dict(max_turns=max_turns, history_length=history_length)
        self.options |= dict(max_tool_calling_iterations=max_tool_calling_iterations)
        self._functions = {name_of(tool): tool for tool in tools}
        if format not in ("text", "native"):
            raise ValueError(f"format={format!r} must be 'text' or 'native'")
        self._native = format == "native"
        self.prompt = NativePrompt() if self._native else ToolPrompt()
        if self._native:
            self._pool.check_schemas(tools)
        self._success, self._score = success, score
        self._seeded, self._iterations = seeded, max_tool_calling_iterations
        self.history_length = history_length
        self.max_turns = max_turns if self._iterations is None else self._iterations + 1
        bear = [concurrency(kind) is True for kind in self._pool.kinds.values() if kind is not type(None)]
        bear += [inspect.iscoroutinefunction(tool) or concurrency(tool) is True for tool in tools]
        self.concurrent = bool(bear) and all(bear)
        self._own: dict[Any, Any] = {}
        self._thread = OwnThread()
        self.messages: list[dict[str, Any]] = []
        self._dialogue = Dialogue(())

    @property
    def __name__(self) -> str:
        return self._pool.name

    @property
    def owns_reward(self) -> bool:
        """Whether an environment has a reward of its own (`get_reward`)."""
        return any(hasattr(kind, "get_reward") for kind in self._pool.kinds.values())

    @property
    def knows_score(self) -> bool:
        return self.owns_reward or self._score is not None

    @property
    def opens_sessions(self) -> bool:
        """Whether a `reset` is dear, so that a run's start makes none to look at it."""
        return any(_is_of(kind, SESSIONS) for kind in self._pool.kinds.values())

    @property
    def takes_seed(self) -> bool:
        return any(names_seed(kind) for kind in self._pool.kinds.values() if hasattr(kind, "reset"))

    @property
    def takes_dynamics_seed(self) -> bool:
        """Whether one of the classes takes a seed of the sibling's own."""
        return any(reset_names(kind, "dynamics_seed") for kind in self._pool.kinds.values())

    @property
    def said(self) -> list[list[Mapping[str, Any]]]:
        """The messages of each turn in native format."""
        return self._dialogue.said

    def reset(self, **row: Any) -> Opening:
        return self._thread.run(partial(self._begin, row))

    def _begin(self, row: Mapping[str, Any]) -> Opening:
        name = self._pool.chosen(row)
        if name not in self._own:
            self._own[name] = self._pool.make(name)
        self.environment = self._own[name]
        self._tools = {**self._functions, **{name_of(tool): tool for tool in tools_of(self.environment)}}
        self._rounds = self._called = self._failed = 0
        self.messages = messages_of(row)
        given = settled(self.environment.reset(**self._columns(row))) if self.environment is not None else None
        self.messages[-1] = {**self.messages[-1], "content": self.messages[-1]["content"] + text_of(given, "reset()")}
        tools = list(self._tools.values())
        shown = schemas_of(tools) if self._native else map(describe, tools)
        self._dialogue = Dialogue(tuple(self.messages), tuple(shown), example_of(tools))
        return Opening(
            observation="",
            task_text=self.messages[-1]["content"].strip(),
            category=str(row.get("category") or name or ""),
            context=self._dialogue,
        )

    def _columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that TRL would pass to `reset`, and the seeds if it takes them by name."""
        left_out = {"environment"} if self._pool.several else set()
        if is_row_id(row.get("task_id")):
            left_out.add("task_id")
        named = {name for name in ("seed", "dynamics_seed") if reset_names(type(self.environment), name)}
        if not self._seeded:
            left_out |= {"seed"} - named
        if self.takes_dynamics_seed:
            left_out |= {"dynamics_seed"} - named
        return {name: value for name, value in row.items() if name not in left_out}

    def project(self, response: str, admissible: Collection[str] | None = None) -> Projection:
        return Projection(calls_in(response), True)

    def step(self, action: str) -> Step:
        return self._thread.run(partial(self._act, action))

    def _act(self, action: str) -> Step:
        try:
            calls = self._asked(action)
        except ValueError as error:
            return self._answer([{"name": "unknown", "arguments": {}, **_failure(error)}])
        if not calls:
            return self._answer([], done=True)
        if self._iterations is not None and self._rounds >= self._iterations:
            return self._answer([])
        self._rounds += 1
        return self._answer([self._run(call) for call in calls], done=self._over())

    def _asked(self, action: str) -> list[Call]:
        """Returns the calls of an action: Python, or in native format the message that the tokenizer's parser made."""
        if not self._native:
            return read_calls(action)
        message = json.loads(action) if action else {}
        self._dialogue.said.append([{"role": "assistant", "content": "", **message}])
        return calls_of(message)

    def _answer(self, ran: list[dict[str, Any]], done: bool = False) -> Step:
        failed = sum("error" in call for call in ran)
        self._called, self._failed = self._called + len(ran), self._failed + failed
        counted = {"tool_calls": self._called, "tool_failures": self._failed}
        text = "\n".join(call["result"] for call in ran)
        if self._native:
            results = [{"role": "tool", "name": call["name"], "content": call["result"]} for call in ran]
            self._dialogue.said[-1] += results
        return Step(text, done=done, won=None, valid=not failed, metrics=counted, info={"calls": ran})

    def _run(self, call: Call) -> dict[str, Any]:
        """Makes one call and returns ``name``, ``arguments``, ``result`` and, if it failed, ``error``."""
        ran = {"name": call.name, "arguments": call.names}
        try:
            if call.name not in self._tools:
                raise ValueError(f"Tool {call.name} not found.")
            tool = self._tools[call.name]
            if call.places:
                ran["arguments"] = dict(inspect.signature(tool).bind(*call.places, **call.names).arguments)
            check_arguments(call.name, signature_of(tool).parameters, ran["arguments"])
            result = settled(tool(*call.places, **call.names))
        except Exception as error:  # foreign code: it goes back to the policy
            return {**ran, **_failure(error)}
        return {**ran, "result": _shown(result)}

    def _over(self) -> bool:
        """Returns the environment's own ``done``, where it has one that is no tool."""
        done = getattr(self.environment, "done", False)
        return not callable(done) and bool(done)

    def finish(self) -> Ending:
        return self._thread.run(self._end)

    def _end(self) -> Ending:
        reward = settled(self.environment.get_reward()) if hasattr(self.environment, "get_reward") else None
        won = self._success(self.environment, reward) if self._success is not None else None
        score = reward if self._score is None else self._score(self.environment)
        return Ending(reward=0.0 if reward is None else reward, won=won, score=score)

    def close(self) -> None:
        try:
            self._thread.run(self._close)
        finally:
            self._thread.stop()

    def _close(self) -> None:
        own, self._own, self._tools, self.environment = self._own, {}, {}, None  # some close once nobody holds them
        for environment in own.values():
            if _is_of(type(environment), HARBOR):  # its sandbox belongs to its own event loop
                environment._run(environment._stop())
                continue
            closes = [getattr(environment, name, None) for name in ("close", "_close")]  # a public method is a tool
            for close in [method for method in closes if callable(method) and not _required(method)][:1]:
                settled(close())


class _Pool:
    """The factories by name, with an object of each that describes the class. It does not play, since it was not made
    on the thread that plays."""

    def __init__(self, factory: Factory | Mapping[str, Factory] | None):
        self.several = isinstance(factory, Mapping)
        self._factories: dict[Any, Factory] = (
            dict(factory) if isinstance(factory, Mapping) else {None: factory or (lambda: None)}
        )
        for name, make in self._factories.items():
            if not callable(make):
                raise TypeError(f"environment_factory{[name] if self.several else ''} is {make!r}, not a callable")
        with kept():
            self._first = {name: make() for name, make in self._factories.items()}
        self.kinds = {name: type(make) for name, make in self._first.items()}
        for name, kind in self.kinds.items():
            if kind is not type(None) and not callable(getattr(kind, "reset", None)):
                place = f"[{name!r}]" if self.several else ""
                raise TypeError(f"environment_factory{place} made a {kind.__name__}, which has no reset()")
        self.name = ", ".join(dict.fromkeys(kind.__name__ for kind in self.kinds.values()))

    def check_schemas(self, functions: Sequence[Callable]) -> None:
        for first in self._first.values():
            schemas_of([*functions, *tools_of(first)])

    def make(self, name: Any) -> Any:
        """Makes another object.

        Raises:
            EnvironmentsDown: if the factory returned the same object again.
        """
        made = self._factories[name]()
        if made is not None and made is self._first[name]:
            raise EnvironmentsDown(f"environment {self.name}: its factory returned {SHARED}")
        return made

    def chosen(self, row: Mapping[str, Any]) -> str | None:
        if not self.several:
            return None
        name = row.get("environment")
        if name not in self._factories:
            raise ValueError(
                f"column 'environment' is {name!r}, which environment_factory does not have; it has "
                f"{', '.join(map(repr, self._factories))}"
            )
        return name


def tools_of(environment: Any) -> list[Callable]:
    """Returns the tools by TRL's rule: the public methods of a class but `reset` and `get_reward`, by name."""
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    return [getattr(environment, name) for name in names if name[0] != "_" and name not in ("reset", "get_reward")]


def schemas_of(tools: Sequence[Callable]) -> list[dict[str, Any]]:
    """Returns the JSON schema of each tool, from its types and its docstring.

    Raises:
        ValueError: names the tool.
    """
    from transformers.utils import get_json_schema

    schemas = []
    for tool in tools:
        try:
            schemas.append(get_json_schema(tool))
        except Exception as error:  # of several kinds, some of them private
            raise ValueError(
                f"tool {name_of(tool)} has no schema: {error}. Give each parameter a type and a line under 'Args:' in "
                "the docstring, or use format='text'"
            ) from error
    return schemas


def _failure(error: Exception) -> dict[str, str]:
    text = text_of_error(error)
    return {"result": str({"error": text}), "error": text}


def _is_of(kind: type, modules: str | tuple[str, ...]) -> bool:
    return any(base.__module__.startswith(modules) for base in kind.__mro__)


def _required(function: Callable) -> bool:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.default is parameter.empty and parameter.kind not in kinds for parameter in parameters)


def _shown(result: Any) -> str:
    """Returns the result of a tool as text for the policy.

    Raises:
        TypeError: for a result without text, such as an image.
    """
    if is_blocks(result):
        return text_of(result, "a tool's result")
    if is_address(result):
        raise TypeError(
            f"a tool's result is {result!r:.80} ({type(result).__name__}); return text, images are not read"
        )
    return str(result)

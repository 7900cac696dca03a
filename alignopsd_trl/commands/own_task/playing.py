"""Plays episodes without a policy, and the players: a scripted one, an endpoint, or chance."""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from alignopsd_trl.checks.tasks import check_sessions
from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.environments.adapters import OpenEnvEnvironment
from alignopsd_trl.environments.adapters.actions import declared_fields
from alignopsd_trl.environments.adapters.calls import Call, message_of
from alignopsd_trl.environments.adapters.openenv import EpisodeTask as AtServer
from alignopsd_trl.environments.adapters.showing import Dialogue, name_of, signature_of
from alignopsd_trl.environments.adapters.tools import tools_of
from alignopsd_trl.environments.base import Chat, Failure, Prompt, View
from alignopsd_trl.environments.batch import open_batch
from alignopsd_trl.environments.loading import find_module
from alignopsd_trl.rollout.driver import BatchedCalls, result_of
from alignopsd_trl.rollout.episode import Episode, SkillSource, episode_seeds, no_skills
from alignopsd_trl.rollout.loop import Loop
from alignopsd_trl.rollout.renderer import Shown, messages_of
from alignopsd_trl.turns import Trajectory, Turn

SLOTS, SECONDS = 16, 60.0  # episodes played at once; most of one call of the environment
CUT = "ended by the time limit of the whole play"
"""The message of such an episode, of which nobody knows how it would have ended."""


@dataclass(frozen=True)
class Situation:
    """The input of a player: its view, the skill that its prompt shows, and the environment."""

    view: View
    skill: str
    environment: Any


@dataclass(frozen=True)
class Answer:
    """A response as a policy would write it. Calls of tools are Python between ``<action>`` tags, whatever the task's
    format. An ``action``, if given, is executed in place of the response's own."""

    response: str
    action: str | None = None


Actor = Callable[[Sequence[Situation]], Sequence[Answer]]
"""Answers all live episodes of one turn."""


def play(
    factory: Callable[[], Any],
    rows: Sequence[Mapping[str, Any]],
    actor: Actor,
    *,
    skills: SkillSource = no_skills,
    skilled_share: float = 0.5,
    time_limit: float = SECONDS,
    seconds: float = math.inf,
) -> list[Episode]:
    """Plays one episode per row, `SLOTS` at once, or as many as the environment allows.

    Args:
        skills: gives the skill of a task.
        skilled_share: share of the episodes, evenly spread, in which the player reads the skill
            (`Trajectory.privileged`). `Turn.shown` of each turn holds its whole view.
        seconds: of play as a whole, after which episodes end with the message `CUT`.
    """
    if not 0 <= skilled_share <= 1:
        raise ValueError(f"skilled_share={skilled_share} must be from 0 to 1")
    share = 0.0 if skills is no_skills else skilled_share
    episodes = []
    for number, row in enumerate(rows):
        skilled = int((number + 1) * share) > int(number * share)
        trajectory = Trajectory(dict(row), str(number), "0", episode_seeds(row["task_id"], 0, 0), privileged=skilled)
        episodes.append(Episode(trajectory))
    with closing(open_batch(factory, max(1, min(SLOTS, len(rows))), time_limit, here=True)) as batch:
        with Bar(len(rows), "play", most_turns=batch.max_turns) as progress:
            Acting(batch, actor, skills=skills, progress=progress, end=time.monotonic() + seconds).run(episodes)
    return episodes


def check_room(factory: Callable[[], Any], rows: Sequence[Mapping[str, Any]], time_limit: float = SECONDS) -> None:
    """Raises `ValueError` if a server is away, or gives fewer sessions than `play` needs for these rows."""
    if isinstance(factory, OpenEnvEnvironment):
        check_sessions(factory, min(SLOTS, len(rows)), rows[0], time_limit, "play fewer with --episodes")


@dataclass
class Acting(Loop):
    """Plays episodes with an actor, which answers all that live at once."""

    actor: Actor
    end: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        self._asked = BatchedCalls(self._turns)
        self._queues = [self._asked]

    async def _answer(self, episode: Episode) -> Turn:
        return await result_of(self._asked.submit(episode.slot, episode))

    def _turns(self, slots: Sequence[int], episodes: Sequence[Episode]) -> list[Turn]:
        if time.monotonic() > self.end:
            self._limit = 1
            for one in episodes:
                one.trajectory.message = CUT
        views = [one.view(self.environments.history_length) for one in episodes]
        found = [self.environments.environment(slot) for slot in slots]
        own = [getattr(one, "environment", None) or one for one in found]  # of an adapted class: the user's own object
        answers = self.actor(list(map(Situation, views, [skill_read(one.trajectory) for one in episodes], own)))
        return [self._turn(*one) for one in zip(episodes, views, answers, strict=True)]

    def _turn(self, episode: Episode, view: View, answer: Answer) -> Turn:
        shown = Shown(self._prompting.kept(view))
        turn = Turn(view.step_count, "", [], [], response_text=answer.response, shown=shown)
        if getattr(self.environments.prompt, "native", False):
            message, turn.action_valid = native_message(answer.response)
            turn.action = json.dumps(message)
        elif answer.action is not None:
            turn.action, turn.action_valid = answer.action, True
        else:
            episode.project(turn, answer.response, self.environments)
        return turn


def skill_read(played: Trajectory) -> str:
    """Returns the skill that an episode's player read."""
    return played.skill_text if played.privileged else ""


def native_message(response: str) -> tuple[dict[str, Any], bool]:
    """Returns a response as a message for a chat template with tools, and whether its calls can be read."""
    try:
        return message_of(response), True
    except ValueError:
        return {"role": "assistant", "content": response}, False


# Players: a scripted player, an OpenAI-compatible endpoint, and random play


Play = Callable[..., str]
"""``(view, environment, skill, draw) -> response``: the whole response of a policy, reasoning trace and action. It may
read ``environment``; ``skill`` is empty if the prompt shows none; ``draw`` is a `random.Random`."""


class PlayerError(UserError):
    """Raised for a player that can't be used."""


def scripted(task: str, spec: str | None, seed: int = 0) -> Scripted:
    """Returns the scripted player ``MODULE:FUNCTION``; by default ``<task>_player:play``. Raises `PlayerError` if there
    is no such function."""
    module, colon, name = (spec or f"{task}_player:play").partition(":")
    if not colon or not name:
        raise PlayerError(f"--player {spec!r} must be MODULE:FUNCTION, such as {task}_player:play")
    found = getattr(find_module(module), name, None)
    if not callable(found):
        raise PlayerError(
            f"there is no function {name!r} in a module {module!r}: write play(view, environment, skill, draw), which "
            "returns a response, or let a model play with --endpoint URL"
        )
    return Scripted(found, random.Random(seed))


@dataclass
class Scripted:
    """Calls a scripted player for each situation. Raises `PlayerError` if it raises or returns no text."""

    function: Play
    draw: random.Random

    def __call__(self, situations: Sequence[Situation]) -> list[Answer]:
        return [self._answer(one) for one in situations]

    def _answer(self, asked: Situation) -> Answer:
        name = getattr(self.function, "__name__", "player")
        try:
            response = self.function(asked.view, environment=asked.environment, skill=asked.skill, draw=self.draw)
        except Exception as error:  # the user's code may raise anything
            told = f"failed with {Failure.of(error).message}; the task was {asked.view.task_text!r:.80}"
            raise PlayerError(f"the scripted player {name} {told}") from error
        if not isinstance(response, str) or not response.strip():
            raise PlayerError(f"the scripted player {name} returned {response!r:.80}; return the response as a str")
        return Answer(response)


@dataclass
class Endpoint:
    """Calls an OpenAI-compatible server (``POST URL/chat/completions``) for each situation, several at once. The key
    comes from ``OPENAI_API_KEY``. Raises `ValueError` if the server can't be reached or returns no completion."""

    url: str
    model: str
    prompt: Prompt
    temperature: float = 1.0
    max_tokens: int = 512
    timeout: float = 120.0

    def __call__(self, situations: Sequence[Situation]) -> list[Answer]:
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(timeout=self.timeout, headers=headers) as client, ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda one: self._answer(client, one), situations))

    def _answer(self, client: httpx.Client, asked: Situation) -> Answer:
        shown = Chat.of(self.prompt.render(asked.view, asked.skill))
        messages = _as_sent(messages_of(shown))
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": self.temperature}
        body |= {"max_tokens": self.max_tokens} | ({"tools": [*shown.tools]} if shown.tools else {})
        try:
            reply = client.post(f"{self.url.rstrip('/')}/chat/completions", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ValueError(
                f"endpoint {self.url} can't be reached, or broke off ({type(error).__name__}: {error}); start it, or "
                "correct the address"
            ) from error
        if reply.status_code != 200:
            raise ValueError(f"endpoint {self.url} answered {reply.status_code}: {reply.text:.200}")
        try:
            return Answer(_said(reply.json()["choices"][0]["message"]))
        except MALFORMED as error:
            raise ValueError(
                f"endpoint {self.url} answered with no chat completion: {reply.text!r:.120}; is it the address of an "
                "OpenAI-compatible server, up to /v1?"
            ) from error


MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer that is not as asked may raise."""


def _said(message: Mapping[str, Any]) -> str:
    """Returns a completion's message as a policy would write it."""
    calls = [_as_python(one["function"]) for one in message.get("tool_calls") or ()]
    thinking, content = (message.get(name) or "" for name in ("reasoning_content", "content"))
    said = "<think>\n" + thinking.strip() + "\n</think>\n" + content if thinking else content
    return "\n".join(filter(None, [said, *calls]))


def _as_sent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages as OpenAI's API takes them: calls with names and arguments in JSON, results under the same
    names."""
    names: list[str] = []
    for number, one in enumerate(messages):
        if calls := one.get("tool_calls"):
            names = [f"call_{number}_{place}" for place in range(len(calls))]
            functions = [{**call["function"], "arguments": json.dumps(call["function"]["arguments"])} for call in calls]
            sent = zip(names, functions, strict=True)
            one["tool_calls"] = [{"id": name, "type": "function", "function": function} for name, function in sent]
        elif one["role"] == "tool" and names:
            one["tool_call_id"] = names.pop(0)
    return list(messages)


def _as_python(function: dict[str, Any]) -> str:
    """Returns a call of an endpoint's answer in the form of players; what can't be read stays as it is."""
    try:
        call = str(Call(function["name"], (), json.loads(function["arguments"] or "{}")))
    except ValueError:
        call = f"{function['name']}({function['arguments']})"
    return f"<action>{call}</action>"


@dataclass
class AtRandom:
    """Plays at random: takes an offered action, calls a tool, fills an action's fields with values of their types, or
    writes a word."""

    draw: random.Random

    def __call__(self, situations: Sequence[Situation]) -> list[Answer]:
        return [self._answer(one) for one in situations]

    def _answer(self, asked: Situation) -> Answer:
        context = asked.view.context
        if asked.view.admissible:
            action = self.draw.choice(asked.view.admissible)
        elif isinstance(context, Dialogue) and (tools := tools_of(asked.environment)):
            tool = self.draw.choice(tools)
            action = str(Call(name_of(tool), (), self._filled(_needed(tool), asked)))
        elif isinstance(context, AtServer) and context.form.fields:
            action = json.dumps(self._filled(context.form.fields, asked))
        elif schemas := [one["function"] for one in getattr(context, "tools", ()) if isinstance(one, Mapping)]:
            chosen = self.draw.choice(schemas)
            action = str(Call(chosen["name"], (), self._filled(declared_fields(chosen.get("parameters") or {}), asked)))
        else:
            action = self._word(asked)
        return Answer(f"<action>{action}</action>", action)

    def _filled(self, fields: Mapping[str, tuple[Any, bool, str]], asked: Situation) -> dict[str, Any]:
        needed = [name for name, (_, required, _) in fields.items() if required] or fields
        return {name: self._value(fields[name][0], asked) for name in needed}

    def _value(self, kind: Any, asked: Situation) -> Any:
        if typing.get_origin(kind) is Literal:
            return self.draw.choice(typing.get_args(kind))
        if typing.get_origin(kind) is list:
            return [self._value((*typing.get_args(kind), str)[0], asked)]
        values = {bool: self.draw.random() < 0.5, int: self.draw.randrange(10), float: self.draw.random()}
        return values.get(kind, self._word(asked))

    def _word(self, asked: Situation) -> str:
        words = re.findall(r"\w+", f"{asked.view.task_text} {asked.view.observation}")
        return self.draw.choice(words) if words else "a"


def _needed(tool: Callable) -> dict[str, tuple[Any, bool, str]]:
    """Returns the parameters of a tool that a call must give, as `declared_fields` does."""
    parameters = signature_of(tool).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return {one.name: (one.annotation, True, "") for one in needed}

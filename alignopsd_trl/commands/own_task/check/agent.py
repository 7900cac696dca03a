"""Checks an agent: plays it twice side by side, and says what its requests are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from alignopsd_trl.checks.tasks import Finding, Row, look
from alignopsd_trl.commands.own_task.playing import Actor, play
from alignopsd_trl.commands.own_task.task import Task
from alignopsd_trl.environments.adapters import AgentEnvironment, Program
from alignopsd_trl.rollout.renderer import Renderer
from alignopsd_trl.turns import Trajectory

AROUND = 40  # characters shown where two texts part
DATES = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)")


def is_agent(task: Task) -> bool:
    return isinstance(task.suite.factory, AgentEnvironment)


def is_program(task: Task) -> bool:
    """Whether each episode is processes of its own, which leave nothing behind and take long to start: two side by side
    (`look_at`) tell what there is to tell."""
    options = getattr(task.suite.factory, "options", {})
    return is_agent(task) and isinstance(options["agent"], Program)


def look_at(task: Task, row: Row, actor: Actor, time_limit: float, renderer: Renderer) -> tuple[str, list[Finding]]:
    """Plays a row twice side by side; returns a line about its requests, and findings."""
    factory: Any = task.suite.factory
    played = [one.trajectory for one in play(factory, [row, row], actor, time_limit=time_limit)]
    if not (played := [one for one in played if one.turns]):
        return "", []  # other findings say why
    lines = [one.turns[0].shown.view.context for one in played]
    asks, limit = lines[0].turns, getattr(factory.options["agent"], "time_limit", time_limit)
    begins = asks[0].at - lines[0].begun
    findings = [*_late(begins, limit), *_bare(asks), *_siblings(lines)]
    findings += _breaks(asks) if task.preset.get("history") == "conversation" else ()  # else each turn is a row
    asides = sum(len(turn.info.get("not_trained", ())) for turn in played[0].turns)
    rows, tokens = sum(one.follows is None for one in asks), len(renderer.encode([_prompt(renderer, played[0])])[0])
    told = [f"{len(asks)} requests to train on, in a conversation {rows} {'row' if rows == 1 else 'rows'}"]
    told += [f"{asides} not trained"] if asides else []
    told += [f"{count} refused ({code})" for code, count in lines[0].refusals.items()]
    told += [f"the first after {begins:.1f} s of {limit:g}, with {tokens} tokens of {renderer.max_length}"]
    return ", ".join(told), findings


def _prompt(renderer: Renderer, played: Trajectory) -> Any:
    return renderer.show(played.turns[0].shown.view, "")


def _late(begins: float, limit: float) -> Iterator[Finding]:
    if begins > limit / 2:
        told = f"the first request comes after {begins:.0f} s of {limit:g}, and later with many side by side; raise "
        yield look("time", told + "environment_time_limit, of a Program time_limit")


def _bare(asks: Sequence[Any]) -> Iterator[Finding]:
    """Yields a finding about requests without tools among others: mostly titles and summaries."""
    bare = [one for one in asks if not one.tools]
    if bare and len(bare) < len(asks):
        yield look(
            "aside",
            f"{len(bare)} of {len(asks)} trained requests have no tools, such as {_text(bare[0].messages[-1])!r:.80}; "
            "a title or a summary need not be trained: name the program's small model policy-aside, or give "
            "AgentEnvironment(..., trains=lambda request: bool(request.get('tools')))",
        )


def _siblings(lines: Sequence[Any]) -> Iterator[Finding]:
    """Yields a finding if two tries of one task begin with different requests."""
    firsts = [[*map(_text, one.turns[0].messages), json.dumps(one.turns[0].tools)] for one in lines if one.turns]
    if len(firsts) == 2 and (parted := _parted(*firsts)):
        both = "".join(parted)
        kind = "a path: let all episodes have one, as Program does" if "/" in both else "draw it from the row's seed"
        kind = "a date or a time: leave it out" if DATES.search(both) else kind
        told = f"two tries of one task begin with different requests, {parted[0]!r} and {parted[1]!r}; {kind}"
        yield Finding("siblings", told)


def _breaks(asks: Sequence[Any]) -> Iterator[Finding]:
    """Yields a finding about the first request that goes on with an earlier dialogue, but not by its very texts."""
    for number, one in enumerate(asks):
        for earlier in reversed(asks[:number] if one.follows is None else ()):
            before = [*earlier.messages, earlier.said]
            if len(one.messages) <= len(before) or _text(one.messages[0]) != _text(before[0]):
                continue
            parted = _parted([*map(_text, before)], [*map(_text, one.messages[: len(before)])])
            texts = f"{parted[1]!r} where it was {parted[0]!r}" if parted else "its tools, or variables of the template"
            told = f"request {number + 1} changes what was said, so that it begins a row of its own: {texts}"
            yield look("rows", told + "; rows that go on cost a part of it")
            return


def _text(message: Any) -> str:
    """Returns what of a message is compared."""
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return f"{message['role']}: {message['content']}" + (f" {json.dumps(calls)}" if calls else "")


def _parted(mine: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    """Returns the places where two dialogues part; `None` where they do not."""
    for one, two in zip(mine, other, strict=False):
        if one != two:
            place = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
            begin = max(place - AROUND, 0)
            return one[begin : place + AROUND], two[begin : place + AROUND]
    return None

"""Demonstrations for a tiny policy: turns of scripted players, with and without a skill block in the prompt.

Without a skill block the answers are those of a player who errs often. With one they are those of a careful player,
also in situations that a careless one has led to. That is all that makes reading the skill worth something to the
policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.environments.base import Prompt, Record, Suite, TextEnvironment, View

COUNTERPARTS = 0.25  # of the careless turns, shown once more with a skill and the careful answer


@dataclass(frozen=True)
class Demonstration:
    """One user message and the response to it."""

    prompt: str
    response: str


@dataclass(frozen=True)
class Played:
    """One turn of a scripted player. ``careful()`` is what a careful one responds to the same view."""

    view: View
    response: str
    careful: Callable[[], str]


Play = Callable[[TextEnvironment, Mapping[str, Any], bool, random.Random], list[Played]]
"""(environment, task row, careful, draw) -> the turns of one episode, by a careful player or by a careless one."""


def every_task(suite: Suite, passes: int, seed: int) -> Iterator[tuple[TextEnvironment, Mapping[str, Any]]]:
    """``passes`` episodes on every training task, in a drawn order."""
    draw, rows, environment = random.Random(seed), list(suite.tasks("train")), suite.factory()
    for _ in range(passes):
        for row in draw.sample(rows, len(rows)):
            yield environment, row


def episode(
    environment: TextEnvironment, row: Mapping[str, Any], respond: Callable[[View], str]
) -> tuple[list[View], list[str], bool]:
    """One episode: what was seen, what was responded, and whether it was won."""
    opening = seen = environment.reset(**row)
    history: list[Record] = []
    views, responses, won = [], [], False
    for number in range(1, environment.max_turns + 1):
        shown = tuple(history[-environment.history_length :])
        views.append(View(opening.task_text, seen.observation, seen.admissible, shown, number - 1))
        responses.append(respond(views[-1]))
        action = environment.project(responses[-1]).action
        step = environment.step(action)
        history.append(Record(number, seen.observation, action, step.observation))
        seen, won = step, bool(step.won)
        if step.done:
            break
    return views, responses, won


def demonstrations(
    episodes: Iterable[tuple[TextEnvironment, Mapping[str, Any]]],
    play: Play,
    guidance: Callable[[str, random.Random], str],
    seed: int,
) -> Iterator[Demonstration]:
    """Turns of one play an episode. Two of three are careless ones; each of their turns is shown without a skill and,
    one time in four, once more with a skill and the careful answer. The third is careful and under a skill.

    Args:
        episodes: what is played, as environment and dataset row.
        guidance: (task text, draw) -> the skill block.
        seed (`int`): of everything that is drawn.
    """
    draw = random.Random(seed)
    for number, (environment, row) in enumerate(episodes):
        under_skill = number % 3 == 2
        for turn in play(environment, row, under_skill, draw):
            if under_skill:
                yield _shown(environment.prompt, turn.view, turn.response, guidance(turn.view.task_text, draw))
                continue
            yield _shown(environment.prompt, turn.view, turn.response, "")
            if draw.random() < COUNTERPARTS:
                yield _shown(environment.prompt, turn.view, turn.careful(), guidance(turn.view.task_text, draw))


def _shown(prompt: Prompt, view: View, response: str, skill: str) -> Demonstration:
    return Demonstration(prompt.render(view, skill), response)


def success(
    suite: Suite, player: Callable[..., Any], heeds: Mapping[str, Sequence[str]], tasks: int, seed: int
) -> dict[str, float]:
    """Share of won episodes of scripted players on the panel's first tasks, by kind of task.

    Args:
        player: (kinds of skill that it heeds, draw) -> something whose ``answer`` responds to a view.
        heeds: kind of task -> heeded kinds.
    """
    draw, environment = random.Random(seed), suite.factory()
    won: dict[str, list[bool]] = {}
    for row in suite.panel("test").rows[:tasks]:
        answer = player(heeds.get(row["category"], ()), draw).answer
        won.setdefault(row["category"], []).append(episode(environment, row, answer)[2])
    return {kind: sum(found) / len(found) for kind, found in won.items()}

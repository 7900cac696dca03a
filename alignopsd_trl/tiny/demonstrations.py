"""Demonstrations for the tiny policy: turns of scripted shoppers, with and without a skill block in the prompt.

Without a skill block the answers are those of a shopper who is careful about half of the time, independently at every
decision. With one they are those of a careful shopper, also on pages that a careless one has led to. That is all that
makes reading the skill worth something to the policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignopsd_trl.tiny.shoppers import Answer, Shopper
from environments.base import Prompt, Record, TextEnvironment, View

HABITS = (0.3, 0.5, 0.7)  # care of an episode without a skill
CAREFUL = 0.95  # care of every answer under a skill


@dataclass(frozen=True)
class Demonstration:
    """One user message and the response to it."""

    prompt: str
    response: str


def play(
    environment: TextEnvironment, row: Mapping[str, Any], shopper: Shopper
) -> tuple[list[View], list[Answer], bool]:
    """One episode: what was seen, what was answered, and whether the request was met."""
    observation, history = environment.reset(**row), []
    views, answers, won = [], [], False
    for number in range(1, environment.max_turns + 1):
        shown = tuple(history[-environment.history_length :])
        view = View(environment.task_text, observation, tuple(environment.admissible), shown, number - 1)
        answer = shopper.answer(view)
        step = environment.step(environment.project(answer.text).action)
        history.append(Record(number, observation, answer.action, step.observation))
        views.append(view)
        answers.append(answer)
        observation, won = step.observation, step.won
        if step.done:
            break
    return views, answers, won


def demonstrations(
    environment: TextEnvironment,
    rows: Sequence[Mapping[str, Any]],
    guidance: Callable[[str, random.Random], str],
    seed: int,
) -> Iterator[Demonstration]:
    """Turns of one episode a row. Two episodes of three are careless ones; each of their turns is shown without a skill
    and, one time in four, once more with a skill and the careful answer. The third is careful and under a skill.

    Args:
        environment: played by the shoppers.
        rows: dataset rows of its train split.
        guidance: (task text, draw) -> the skill block.
        seed (`int`): of everything that is drawn.
    """
    draw = random.Random(seed)
    careful = Shopper(CAREFUL, draw)
    for number, row in enumerate(rows):
        under_skill = number % 3 == 2
        shopper = careful if under_skill else Shopper(draw.choice(HABITS), draw)
        views, answers, _ = play(environment, row, shopper)
        for view, answer in zip(views, answers, strict=True):
            if under_skill:
                yield _shown(environment.prompt, view, answer, guidance(view.task_text, draw))
                continue
            yield _shown(environment.prompt, view, answer, "")
            if draw.random() < 0.25:
                yield _shown(environment.prompt, view, careful.answer(view), guidance(view.task_text, draw))


def _shown(prompt: Prompt, view: View, answer: Answer, skill: str) -> Demonstration:
    return Demonstration(prompt.render(view, skill), answer.text)

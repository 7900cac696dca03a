"""Episodes without a policy: written down, or walked by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alignopsd_trl.environments.base import Record, TextEnvironment, View
from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn


def episode(rollout: str, reward: float, *steps: tuple[str, str]) -> Trajectory:
    """An episode from (action, answer) pairs; the first observation is ``start``."""
    found, before = Trajectory({"task_id": "t"}, "t", rollout, reward=reward, task_text="find it"), "start"
    for number, (action, answer) in enumerate(steps):
        turn = Turn(number, "", [1], [1], [2], "", NO_THOUGHT, action, True, answer, chosen_on=before)
        found.turns.append(turn)
        before = answer
    return found


def walk(
    environment: TextEnvironment, row: Mapping[str, Any], respond: Callable[[View], str]
) -> tuple[list[View], list[str], bool]:
    """One episode of a function that answers views: what was seen, what was responded, and whether it was won."""
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

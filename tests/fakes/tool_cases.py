"""Scripted episodes of the tool environments, in the words of TRL's dialogues: (what is said, calls) a turn."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from fakes.tool_classes import (
    Calculator,
    Counter,
    Guessing,
    calculator_rows,
    counter_rows,
    guessing_reward,
    guessing_rows,
    messages,
)


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any.

    Returns:
        Twice as much.
    """
    return 2 * number


def counted(completions: Any, **columns: Any) -> list[float]:
    return [float(sum(message["role"] == "tool" for message in one)) for one in completions]


def last_word(completions: Any, **columns: Any) -> list[float]:
    return [float(len(one[-1]["content"])) for one in completions]


def increment(step: int) -> tuple[str, dict[str, Any]]:
    return "increment", {"step": step}


def guess(number: int) -> tuple[str, dict[str, Any]]:
    return "guess", {"number": number}


Plan = list[tuple[str, list[tuple[str, dict[str, Any]]]]]
COUNTING: list[Plan] = [
    [("up", [increment(3)]), ("done", [])],
    [("", [increment(5), ("decrement", {})]), ("", [("decrement", {"step": 2})]), ("It is 2.", [])],
    [("", [("increment", {"stride": 1})]), ("again", [("reset", {})]), ("I can't.", [])],
    [("nothing to do", [])],
]
GUESSING: list[Plan] = [
    [("", [guess(1)]), ("", [guess(3)])],
    [("", [guess(9), guess(3)])],
    [("", [guess(2)]), ("I give up", [])],
    [("four?", [])],
]
CALCULATING: list[Plan] = [
    [("", [("divide", {"a": 6, "b": 1})]), ("6", [])],
    [("", [("divide", {"a": 6, "b": 0})]), ("", [("multiply", {"a": 2, "b": 3}), ("root", {})]), ("6", [])],
    [("", [("multiply", {"a": 1, "b": 3}), ("multiply", {"a": 3})]), ("3", [])],
    [("", [("divide", {"a": "six", "b": 2})]), ("3", [])],
]
MIXED: list[Plan] = [COUNTING[0], COUNTING[1], GUESSING[2], GUESSING[3]]
DOUBLING: list[Plan] = [[("", [("double", {"number": n})] * n), ("so", [])] for n in range(1, 5)]
mixed_rows = [
    {"prompt": messages("Count."), "environment": "counter", "target": 2, "secret": None},
    {"prompt": messages("Guess."), "environment": "guessing", "target": None, "secret": 4},
]
doubling_rows = Dataset.from_list([{"prompt": messages("Double.")}] * 2)
CASES: dict[str, tuple[dict[str, Any], Any, list[Plan]]] = {
    "counter": ({"environment_factory": Counter}, counter_rows(2), COUNTING),
    "guessing": ({"environment_factory": Guessing, "reward_funcs": guessing_reward}, guessing_rows(2), GUESSING),
    "calculator": ({"environment_factory": Calculator}, calculator_rows(2), CALCULATING),
    "counter, with functions of completions": (
        {"environment_factory": Counter, "reward_funcs": [counted, last_word], "reward_weights": [1.0, 0.25]},
        counter_rows(2),
        COUNTING,
    ),
    "counter and tools": (
        {"environment_factory": Counter, "tools": [double]},
        counter_rows(2),
        [*COUNTING[:3], DOUBLING[1]],
    ),
    "two environments": (
        {"environment_factory": {"counter": Counter, "guessing": Guessing}},
        Dataset.from_list(mixed_rows),
        MIXED,
    ),
    "functions alone": ({"tools": [double], "reward_funcs": counted}, doubling_rows, DOUBLING),
    "one round of calls": (
        {"environment_factory": Counter, "max_tool_calling_iterations": 1},
        counter_rows(2),
        [*COUNTING[:1], COUNTING[1][:2], COUNTING[2][:2], COUNTING[3]],
    ),
}


def by_itself(plan: Plan, parts: dict[str, Any]) -> bool:
    """Whether the environment is done with the plan's last call. TRL does not know and asks once more."""
    return bool(plan[-1][1]) and "max_tool_calling_iterations" not in parts

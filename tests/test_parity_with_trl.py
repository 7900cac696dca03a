"""A class under TRL's own trainer and under this one, with one scripted policy: rewards, calls and ends are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from test_tool_environments import trainer_of
from tool_classes import (
    Calculator,
    Counter,
    Guessing,
    as_text,
    as_tool_calls,
    calculator_rows,
    chat_model,
    chat_tokenizer,
    counter_rows,
    guessing_reward,
    guessing_rows,
    messages,
    script,
)
from trl import GRPOConfig, GRPOTrainer

from alignopsd_trl.environments.adapters import ToolEnvironment


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


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder, tokenizer = tmp_path_factory.mktemp("policy"), chat_tokenizer()
    chat_model(tokenizer).save_pretrained(folder)
    return folder, tokenizer


def watched(trainer: Any) -> dict[str, Any]:
    """What the trainer's rewards were made of: both come through TRL's own method."""
    seen: dict[str, Any] = {}
    inner = trainer._calculate_rewards

    def look(inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        table = inner(inputs, prompts, completions, ids)
        seen["rewards"] = (table * trainer.reward_weights).nansum(1).tolist()
        seen["calls"] = [sum(message["role"] == "tool" for message in one) for one in completions]
        found = [[message["content"] for message in one if message["role"] == "tool"] for one in completions]
        seen["results"] = list(map(sorted, found))  # TRL awaits coroutines after it ran all else; here the order holds
        seen["turns"] = [sum(message["role"] == "assistant" for message in one) for one in completions]
        seen["last"] = [(one[-1]["role"], one[-1]["content"]) for one in completions]
        seen["prompts"] = prompts
        return table

    trainer._calculate_rewards = look
    return seen


def by_itself(plan: Plan, parts: dict[str, Any]) -> bool:
    """Whether the environment is done with the plan's last call. TRL does not know and asks once more."""
    return bool(plan[-1][1]) and "max_tool_calling_iterations" not in parts


def under_trl(policy: Any, folder: Path, parts: dict[str, Any], rows: Any, plans: list[Plan]) -> dict[str, Any]:
    model, tokenizer = policy
    own = {name: value for name, value in parts.items() if name in ("environment_factory", "reward_funcs", "tools")}
    options = {name: value for name, value in parts.items() if name not in own}
    own |= {"reward_funcs": list(funcs)} if isinstance(funcs := own.get("reward_funcs"), list) else {}  # TRL adds to it
    config = GRPOConfig(
        str(folder), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=4, num_generations=2,
        max_steps=1, max_completion_length=4096, shuffle_dataset=False, save_strategy="no", **options,
    )  # fmt: skip
    trainer = GRPOTrainer(str(model), args=config, train_dataset=rows, processing_class=tokenizer, **own)
    script(trainer, [[as_tool_calls(*turn) for turn in plan] + ["over"] * by_itself(plan, parts) for plan in plans])
    seen = watched(trainer)
    trainer.train()
    return seen


def under_ours(
    policy: Any, folder: Path, form: str, parts: dict[str, Any], rows: Any, plans: list[Plan]
) -> dict[str, Any]:
    parts = dict(parts)
    if form == "native":
        given = parts.pop("environment_factory", None), parts.pop("tools", ())
        parts["environment_factory"] = ToolEnvironment(*given, "native")
    write = as_tool_calls if form == "native" else as_text
    texts = [[write(*turn) for turn in plan] for plan in plans]
    trainer = trainer_of(policy, folder, texts, train_dataset=rows, max_prompt_length=4096, **parts)
    seen = watched(trainer)
    trainer.train()
    return seen


@pytest.mark.parametrize("name", CASES)
def test_rewards_calls_and_ends_are_those_of_trl(policy: Any, tmp_path: Path, name: str) -> None:
    theirs = under_trl(policy, tmp_path / "trl", *CASES[name])
    parts, _, plans = CASES[name]
    for form in ("text", "native"):
        ours = under_ours(policy, tmp_path / form, form, *CASES[name])
        for what in ("rewards", "calls", "results", "prompts"):
            assert ours[what] == theirs[what], (form, what)
        for place, plan in enumerate(plans):
            alone = by_itself(plan, parts)
            assert ours["turns"][place] == theirs["turns"][place] - alone, (form, place)
            assert alone or ours["last"][place] == theirs["last"][place], (form, place)

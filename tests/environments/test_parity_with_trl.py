"""A class under TRL's own trainer and under this one, with one scripted policy: rewards, calls and ends are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.tool_cases import CASES, Plan, by_itself
from fakes.tool_classes import (
    as_text,
    as_tool_calls,
    script,
    trainer_of,
)
from trl import GRPOConfig, GRPOTrainer

from alignopsd_trl.environments.adapters import ToolEnvironment


def watched(trainer: Any) -> dict[str, Any]:
    """What the trainer's rewards were made of: both come through TRL's own method."""
    seen: dict[str, Any] = {}
    inner = trainer._calculate_rewards

    def look(inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        table = inner(inputs, prompts, completions, ids)
        seen["rewards"] = (table * trainer.reward_weights).nansum(1).tolist()
        seen["calls"] = [sum(message["role"] == "tool" for message in one) for one in completions]
        found = [[message["content"] for message in one if message["role"] == "tool"] for one in completions]
        found = [["error" if text.startswith("{'error'") else text for text in one] for one in found]  # words differ
        seen["results"] = list(map(sorted, found))  # TRL awaits coroutines after it ran all else; here the order holds
        seen["turns"] = [sum(message["role"] == "assistant" for message in one) for one in completions]
        seen["last"] = [(one[-1]["role"], one[-1]["content"]) for one in completions]
        seen["prompts"] = prompts
        return table

    trainer._calculate_rewards = look
    return seen


def under_trl(chat_policy: Any, folder: Path, parts: dict[str, Any], rows: Any, plans: list[Plan]) -> dict[str, Any]:
    model, tokenizer = chat_policy
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
    chat_policy: Any, folder: Path, form: str, parts: dict[str, Any], rows: Any, plans: list[Plan]
) -> dict[str, Any]:
    parts = dict(parts)
    if form == "native":
        given = parts.pop("environment_factory", None), parts.pop("tools", ())
        parts["environment_factory"] = ToolEnvironment(*given, "native")
    write = as_tool_calls if form == "native" else as_text
    texts = [[write(*turn) for turn in plan] for plan in plans]
    trainer = trainer_of(chat_policy, folder, texts, train_dataset=rows, max_prompt_length=4096, **parts)
    seen = watched(trainer)
    trainer.train()
    return seen


@pytest.mark.parametrize("name", mostly_full(CASES))
def test_rewards_calls_and_ends_are_those_of_trl(chat_policy: Any, tmp_path: Path, name: str) -> None:
    theirs = under_trl(chat_policy, tmp_path / "trl", *CASES[name])
    parts, _, plans = CASES[name]
    for form in ("text", "native"):
        ours = under_ours(chat_policy, tmp_path / form, form, *CASES[name])
        for what in ("rewards", "calls", "results", "prompts"):
            assert ours[what] == theirs[what], (form, what)
        for place, plan in enumerate(plans):
            alone = by_itself(plan, parts)
            assert ours["turns"][place] == theirs["turns"][place] - alone, (form, place)
            assert alone or ours["last"][place] == theirs["last"][place], (form, place)

"""A dialogue with tools as one row: tokens and mask are those of TRL's own trainer for the same scripted policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.tool_cases import CASES, by_itself
from fakes.tool_classes import as_tool_calls, script, trainer_of
from trl import GRPOConfig, GRPOTrainer

from alignopsd_trl.environments.adapters import ToolEnvironment


def rows_of(trainer: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, completion and mask of each row of the first round."""
    seen: list[dict[str, torch.Tensor]] = []
    inner = trainer._generate_and_score_completions

    def look(inputs: Any) -> dict[str, torch.Tensor]:
        seen.append(inner(inputs))
        return seen[-1]

    trainer._generate_and_score_completions = look
    trainer.train()
    (rows,) = seen
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(rows["prompt_ids"], rows["prompt_mask"], strict=True)]
    whole = rows["completion_mask"].bool()
    read = rows.get("tool_mask", rows["completion_mask"])
    return [
        (prompt, ids[mask].tolist(), tool[mask].tolist())
        for prompt, ids, mask, tool in zip(prompts, rows["completion_ids"], whole, read, strict=True)
    ]


# not the calculator, which has coroutines: TRL puts their results behind those of the other calls, here the order holds
@pytest.mark.parametrize("past_thinking", mostly_full(["keep", "template"]))
@pytest.mark.parametrize("name", mostly_full(["counter", "counter and tools", "functions alone"]))
def test_tokens_and_mask_are_those_of_trl(chat_policy: Any, tmp_path: Path, name: str, past_thinking: str) -> None:
    parts, rows, plans = CASES[name]
    assert not any(by_itself(plan, parts) for plan in plans)
    model, tokenizer = chat_policy
    texts = [[as_tool_calls(*turn) for turn in plan] for plan in plans]
    config = GRPOConfig(
        str(tmp_path / "trl"), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=4,
        num_generations=2, max_steps=1, max_completion_length=4096, shuffle_dataset=False, save_strategy="no",
    )  # fmt: skip
    theirs = GRPOTrainer(str(model), args=config, train_dataset=rows, processing_class=tokenizer, **parts)
    script(theirs, texts)
    own = dict(parts)
    own["environment_factory"] = ToolEnvironment(own.pop("environment_factory", None), own.pop("tools", ()), "native")
    options = {"history": "conversation", "past_thinking": past_thinking, "max_prompt_length": 4096}
    ours = trainer_of(chat_policy, tmp_path / "ours", texts, train_dataset=rows, **options, **own)
    expected, found = rows_of(theirs), rows_of(ours)
    assert len(found) == len(expected) == 4
    texts_of = [sorted(tokenizer.decode(one[0] + one[1]) for one in rows) for rows in (found, expected)]
    assert texts_of[0] == texts_of[1]
    assert sorted(found) == sorted(expected), "in their own order: ours is that of tasks"

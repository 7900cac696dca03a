"""Lengths of prompts and responses come with a policy; the command line goes before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.toy_suite import save_policy
from fakes.trainers import make_trainer

from alignopsd_trl.commands.launch import evaluate
from alignopsd_trl.commands.measure.setup import configure
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.runs.sizes import SIZES_FILE, choose_sizes, read_sizes

ON_SKILLS = ("--panel", "test", "--limit", "60", "--max_completion_length", "40", "--max_turns", "8", "--skills")


def _sizes(*flags: str) -> dict[str, Any]:
    return evaluate._arguments(["--model", "tiny", "--environment", "webshop_tiny", *flags]).sizes


def test_an_evaluation_takes_the_skill_tokens_of_the_policy() -> None:
    assert _sizes(*ON_SKILLS) == _sizes(*ON_SKILLS, "--skill_tokens", "64")
    assert _sizes(*ON_SKILLS, "--skill_tokens", "32")["skill_tokens"] == 32


@pytest.mark.parametrize(
    ("flags", "own", "expected"),
    [([], {}, 0.4), ([], {"eval_temperature": 1.0}, 1.0), (["--temperature", "0"], {"eval_temperature": 1.0}, 0.0)],
)
def test_an_evaluation_takes_the_temperature_of_the_policys_recipe(
    tmp_path: Path, flags: list[str], own: dict[str, float], expected: float
) -> None:
    policy = save_policy(tmp_path / "policy")
    (policy / SIZES_FILE).write_text(json.dumps(own))
    given = evaluate._arguments(["--model", str(policy), "--environment", "webshop_tiny", *flags])
    evaluate._check(given)
    assert given.temperature == expected and "eval_temperature" not in given.sizes
    assert ("eval_temperature" in given.told) == bool(flags or own)


@pytest.mark.parametrize("policy", SHIPPED_MODELS)
def test_shipped_policies_bring_their_sizes(policy: str) -> None:
    assert {"max_prompt_length", "max_completion_length", "skill_tokens"} <= read_sizes(policy).keys()


def test_a_policy_without_the_file_is_played_as_before_and_it_is_said_whence(tmp_path: Path) -> None:
    sizes, told = choose_sizes(str(tmp_path), {"max_turns": 3})
    assert sizes["max_prompt_length"] == 4096 and sizes["skill_tokens"] is None and sizes["history"] == "window"
    assert told == "max_turns=3 as asked; max_prompt_length=4096, max_completion_length=512 by default"
    (tmp_path / SIZES_FILE).write_text(json.dumps({"skill_tokens": 7, "history": "conversation", "other": 1}))
    sizes, told = choose_sizes(str(tmp_path), {})
    assert sizes["skill_tokens"] == 7 and sizes["history"] == "conversation" and "other" not in sizes
    assert f"skill_tokens=7, history=conversation as the policy's {SIZES_FILE} says" in told


def test_a_run_keeps_its_sizes_beside_its_weights(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_turns=4, thinking_tags=["[", "]"], eval_temperature=0.7)
    trainer.save_model(str(tmp_path / "saved"))
    kept = {"max_prompt_length": 128, "max_completion_length": 12, "skill_tokens": 30, "max_turns": 4}
    kept |= {"thinking_tags": ["[", "]"], "history": "window", "past_thinking": "template", "eval_temperature": 0.7}
    assert read_sizes(str(tmp_path / "saved")) == kept


def test_a_measurement_of_fidelity_takes_them_too(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    (policy / SIZES_FILE).write_text(json.dumps({"skill_tokens": 7, "max_prompt_length": 99}))
    given = read_sizes(str(policy)) | {"max_prompt_length": 55}
    config = configure(tmp_path, "webshop_tiny", given, "cpu", "grpo", {})
    assert config.skill_tokens == 7 and config.max_prompt_length == 55 and config.max_completion_length == 40

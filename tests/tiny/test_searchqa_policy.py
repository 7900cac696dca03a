"""The shipped policy for Search-QA: loads offline, fits its limits, writes what it reads without loss."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.loading import load
from alignopsd_trl.launch.arguments import parse
from alignopsd_trl.skills import SkillBank, skill_source
from assets.tiny_policies import readers
from assets.tiny_policies.curricula import CURRICULA, guidance
from assets.tiny_policies.demonstrations import demonstrations
from assets.tiny_policies.make_policy import measure

CURRICULUM = CURRICULA["searchqa_tiny"]
SETTING = CURRICULUM.setting
FOLDER = Path(resolve_model("tiny_searchqa"))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def bank() -> SkillBank:
    return SkillBank.load(SETTING.skill_bank, load_encoder(SETTING.encoder))


@pytest.fixture(scope="module")
def world() -> Suite:
    return load(SETTING.environment, **SETTING.environment_options)


def test_size_and_recipe():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 6 * 2**20
    recorded = json.loads((FOLDER / "recipe.json").read_text(encoding="utf-8"))
    expected = SETTING.to_dict()
    assert {name: recorded[name] for name in expected} == expected


def test_the_recipe_has_the_limits_that_the_policy_was_made_for(tmp_path: Path):
    chosen, config, model = parse("searchqa_tiny", ["--output_dir", str(tmp_path)])
    assert (chosen.environment, model.model_name_or_path) == (SETTING.environment, "tiny_searchqa")
    for name in ("max_prompt_length", "max_completion_length", "skill_tokens"):
        assert getattr(config, name) == getattr(SETTING, name)


def test_nothing_is_lost_and_every_word_is_known(world: Suite, tokenizer, bank: SkillBank):
    episodes = [(world.factory(), row) for row in world.panel("test").rows[::4]]
    for shown in demonstrations(episodes, readers.play, partial(guidance, bank), seed=3):
        for text in (shown.prompt, shown.response):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert len(ids) < 1.5 * len(text.split()) + 40, text


def test_prompts_with_a_skill_fit_the_limit(world: Suite, tokenizer, bank: SkillBank):
    source = skill_source(bank, tokenizer, SETTING.skill_tokens)
    episodes = [(world.factory(), row) for row in world.panel("test").rows[::4]]
    lengths = []
    for shown in demonstrations(episodes, readers.play, lambda text, draw: source(text, None, None)[0], seed=5):
        chat = [{"role": "user", "content": shown.prompt}]
        lengths.append(len(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]))
        assert len(tokenizer(shown.response)["input_ids"]) < SETTING.max_completion_length
    assert max(lengths) <= SETTING.max_prompt_length


@pytest.mark.slow
def test_reading_the_skill_helps(world: Suite, tokenizer, bank: SkillBank):
    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)
    rows = measure(model, tokenizer, world, bank, SETTING, tasks=200)
    for plain, skilled in zip(rows[::2], rows[1::2], strict=True):
        assert 10 <= plain["success"]["mean"] <= 50
        assert skilled["success"]["mean"] >= plain["success"]["mean"] + 15
        assert plain["invalid_actions"] < 0.05

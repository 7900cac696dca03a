"""The shipped tiny policy: loads offline, writes what it reads without loss, and gains from the skill."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
from fakes.banks import sentences_of
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import alignopsd_trl
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.own_task.warm_start.tiny import CONTEXT, ROLES, tiny_model
from alignopsd_trl.skills import SkillBank, skill_source
from assets.tiny_policies import shoppers
from assets.tiny_policies.curricula import CURRICULA, guidance
from assets.tiny_policies.demonstrations import demonstrations
from assets.tiny_policies.make_policy import measure
from assets.tiny_policies.tokenizer import build_tokenizer

CURRICULUM = CURRICULA["webshop_tiny"]
SETTING = CURRICULUM.setting
FOLDER = Path(alignopsd_trl.__file__).parent / "data" / "tiny_webshop"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def bank() -> SkillBank:
    return SkillBank.load(SETTING.skill_bank, load_encoder(SETTING.encoder))


def test_size_and_recipe():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 10 * 2**20
    recipe = json.loads((FOLDER / "recipe.json").read_text(encoding="utf-8"))
    expected = SETTING.to_dict()
    assert {name: recipe[name] for name in expected} == expected


def test_every_word_of_the_shop_and_the_bank_is_one_token(suite: Suite, tokenizer, bank: SkillBank):
    rows = random.Random(3).sample(list(suite.tasks("test")), 40)
    episodes = [(suite.factory(), row) for row in rows]
    for shown in demonstrations(episodes, shoppers.play, partial(guidance, bank), seed=3):
        for text in (shown.prompt, shown.response):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert not any(token.startswith("<0x") for token in tokenizer.convert_ids_to_tokens(ids)), text
    for text in sentences_of(bank):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert len(ids) <= 2 * len(text.split())


def _cut(backend, text: str) -> list:
    return backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))


def test_the_maker_makes_what_is_shipped(tokenizer):
    made = tiny_model(tokenizer, layers=4).config.to_dict()
    shipped = AutoConfig.from_pretrained(FOLDER, local_files_only=True).to_dict()
    free = {
        "architectures",
        "max_position_embeddings",
        "initializer_range",
        "dtype",
        "transformers_version",
        "_name_or_path",
    }
    assert {name for name in made.keys() - free if made[name] != shipped[name]} == set()
    anew = build_tokenizer([*ROLES, "find me"], CONTEXT, CURRICULUM.phrases, CURRICULUM.pieces)
    cut = [_cut(one.backend_tokenizer, "click[1234567890] 'wool, (22.5) 123'") for one in (anew, tokenizer)]
    assert cut[0] == cut[1] and len(cut[0]) == 13
    assert anew.chat_template == tokenizer.chat_template and anew.eos_token == tokenizer.eos_token


def test_prompts_with_a_skill_fit_the_limit(suite: Suite, tokenizer, bank: SkillBank):
    source = skill_source(bank, tokenizer, SETTING.skill_tokens)
    episodes = [(suite.factory(), row) for row in list(suite.tasks("test"))[:40]]
    lengths = []
    for shown in demonstrations(episodes, shoppers.play, lambda text, draw: source(text, None, None)[0], seed=5):
        chat = [{"role": "user", "content": shown.prompt}]
        lengths.append(len(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]))
        assert len(tokenizer(shown.response)["input_ids"]) < SETTING.max_completion_length
    assert max(lengths) <= SETTING.max_prompt_length


@pytest.mark.slow
def test_reading_the_skill_helps(suite: Suite, tokenizer, bank: SkillBank):
    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)
    rows = measure(model, tokenizer, suite, bank, SETTING, tasks=200)
    for plain, skilled in zip(rows[::2], rows[1::2], strict=True):
        assert 10 <= plain["success"]["mean"] <= 50
        assert skilled["success"]["mean"] >= plain["success"]["mean"] + 15
        assert plain["invalid_actions"] < 0.05

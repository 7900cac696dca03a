"""The shipped policies that read their skills, beside their recipes and banks."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from alignopsd_trl.policy.shipped import SHIPPED_MODELS
from alignopsd_trl.skills import SkillBank
from tools.tiny_policies.curricula import CURRICULA


@pytest.mark.parametrize(
    ("world", "policy"),
    [("webshop_trips", "tiny_trips"), ("searchqa_hops", "tiny_hops"), ("alfworld_pairs", "tiny_pairs")],
)
def test_the_recipe_beside_the_weights_and_every_word_of_the_bank(world: str, policy: str):
    setting, folder = CURRICULA[world].setting, SHIPPED_MODELS[policy]
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    expected = setting.to_dict()
    assert {name: recipe[name] for name in expected} == expected
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in SkillBank.load(setting.skill_bank).texts():
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and len(ids) <= 2 * len(text.split())

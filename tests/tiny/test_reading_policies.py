"""The shipped policies that read their skills: beside their recipes and banks, at play, and under which skill."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.banks import sentences_of
from fakes.sweeps import mostly_full
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.skills import SkillBank
from assets.tiny_policies import reading
from assets.tiny_policies.curricula import CURRICULA


@pytest.mark.parametrize(
    ("world", "policy"),
    [("webshop_trips", "tiny_trips"), ("searchqa_hops", "tiny_hops"), ("alfworld_pairs", "tiny_pairs")],
)
def test_the_recipe_beside_the_weights_and_every_word_of_the_bank(world: str, policy: str):
    setting, folder = CURRICULA[world].setting, SHIPPED_MODELS[policy]
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    expected = setting.to_dict()
    assert {name: recipe[name] for name in expected} == expected
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in sentences_of(SkillBank.load(setting.skill_bank)):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and len(ids) <= 2 * len(text.split())


@pytest.mark.parametrize(
    ("world", "policy"),
    [("webshop_trips", "tiny_trips"), ("searchqa_hops", "tiny_hops"), ("alfworld_pairs", "tiny_pairs")],
)
def test_one_command_runs_the_rounds_that_the_recipe_beside_the_weights_names(world: str, policy: str):
    made = json.loads((SHIPPED_MODELS[policy] / "recipe.json").read_text(encoding="utf-8"))["made_with"]
    rounds = [made]
    while "start" in rounds[-1]:
        rounds.append(rounds[-1]["start"])
    name, shipped = world, list(reversed(rounds))
    for flags in shipped:
        training = CURRICULA[name].training
        assert {one: flags.get(one) for one in training} == dict(training), name
        name = CURRICULA[name].then
    assert name == ""


@pytest.mark.parametrize(
    ("world", "policy", "turns"),
    mostly_full([("searchqa_hops", "tiny_hops", (3, 8)), ("alfworld_pairs", "tiny_pairs", (7, 15))]),
)
def test_the_policy_plays_within_its_limits(world: str, policy: str, turns: tuple[int, int]):
    setting, folder, suite = CURRICULA[world].setting, SHIPPED_MODELS[policy], load(world)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="float32").eval()
    assert model.num_parameters() < 2e6
    limits = {name: getattr(setting, name) for name in ("max_prompt_length", "max_completion_length")}
    result, _ = evaluate(model, tokenizer, suite.factory, suite.panel("test").head(16), temperature=1.0, **limits)
    assert result.invalid_actions < 0.05 and turns[0] <= result.turns <= turns[1]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "over_other"), [("searchqa_hops", 10), ("alfworld_pairs", 15)])
def test_the_policy_reads_its_skill(world: str, over_other: int):
    found = reading.main(["--environment", world, "--tasks", "120"])["summary"]
    assert 20 <= found["none"] <= 50
    assert found["own"] >= found["none"] + 20
    assert found["own"] >= found["other"] + over_other

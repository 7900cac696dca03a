"""The shipped policies: beside their recipes and banks, at play, and with and without a skill. They load offline."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from fakes.banks import sentences_of
from fakes.sweeps import mostly_full
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.skills import SkillBank, skill_source

READING = {"webshop_trips": "tiny_trips", "searchqa_hops": "tiny_hops", "alfworld_pairs": "tiny_pairs"}
POLICIES = {"webshop_tiny": "tiny", "searchqa_tiny": "tiny_searchqa", "alfworld_tiny": "tiny_alfworld", **READING}
"""World -> its policy; those of `READING` read their skill."""


def tokenizer_of(world: str) -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED_MODELS[POLICIES[world]], local_files_only=True)


def model_of(world: str) -> Any:
    folder = SHIPPED_MODELS[POLICIES[world]]
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="float32").eval()


def setting_of(world: str) -> dict[str, Any]:
    """What a policy was made for, as recorded beside its weights."""
    return json.loads((SHIPPED_MODELS[POLICIES[world]] / "recipe.json").read_text(encoding="utf-8"))


LIMITS = ("max_prompt_length", "max_completion_length")


def played(world: str, temperature: float, skill: str | None) -> dict[str, Any]:
    """An evaluation on 120 tasks, by the figures of `results.json`: without a skill (""), with what the bank retrieves
    (None), or with one kind's skills whatever the task."""
    setting, tokenizer = setting_of(world), tokenizer_of(world)
    suite = load(world, **setting["environment_options"])
    bank = SkillBank.load(setting["skill_bank"], load_encoder(setting["encoder"]))
    source = skill_source(bank, tokenizer, setting["skill_tokens"])
    skills = source if skill is None else (lambda text, key, data: source(text, skill, data)) if skill else None
    panel, limits = suite.panel(setting["panel"]).head(120), {name: setting[name] for name in LIMITS}
    sampling = {"temperature": temperature, "batch_size": 100, "skills": skills}
    return evaluate(model_of(world), tokenizer, suite.factory, panel, **sampling, **limits)[0].to_dict()


@pytest.mark.parametrize("world", POLICIES)
def test_a_policy_is_small_and_the_recipe_has_what_it_was_made_for(world: str, tmp_path: Path) -> None:
    setting, folder = setting_of(world), SHIPPED_MODELS[POLICIES[world]]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10 * 2**20
    chosen, config, model = parse(world, ["--output_dir", str(tmp_path)])
    assert (chosen.environment, model.model_name_or_path) == (setting["environment"], POLICIES[world])
    for name in (*LIMITS, "skill_tokens"):
        assert getattr(config, name) == setting[name], name


@pytest.mark.parametrize("world", ["webshop_tiny", *READING])
def test_every_word_of_the_bank_is_known(world: str) -> None:
    tokenizer = tokenizer_of(world)
    for text in sentences_of(SkillBank.load(setting_of(world)["skill_bank"])):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and len(ids) <= 2 * len(text.split())


@pytest.mark.parametrize(("world", "turns"), mostly_full([("searchqa_hops", (3, 8)), ("alfworld_pairs", (7, 15))]))
def test_the_policy_plays_within_its_limits(world: str, turns: tuple[int, int]) -> None:
    setting, suite, model = setting_of(world), load(world), model_of(world)
    assert model.num_parameters() < 2e6
    limits = {name: setting[name] for name in LIMITS}
    panel = suite.panel("test").head(16)
    result, _ = evaluate(model, tokenizer_of(world), suite.factory, panel, temperature=1.0, **limits)
    assert result.invalid_actions < 0.05 and turns[0] <= result.turns <= turns[1]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "gain"), [("webshop_tiny", 15), ("searchqa_tiny", 15), ("alfworld_tiny", 10)])
def test_the_skill_helps(world: str, gain: int) -> None:
    for temperature in (0.4, 1.0):
        plain, skilled = (played(world, temperature, skill) for skill in ("", None))
        assert world == "alfworld_tiny" or 10 <= plain["success"]["mean"] <= 50
        assert skilled["success"]["mean"] >= plain["success"]["mean"] + gain
        assert plain["invalid_actions"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("world", "margin"), [("webshop_trips", 0), ("searchqa_hops", 10), ("alfworld_pairs", 15)])
def test_the_policy_reads_its_skill(world: str, margin: int) -> None:
    kinds = load(world).categories
    cells = {
        skill: {kind: row["success"]["mean"] for kind, row in played(world, 1.0, skill)["categories"].items()}
        for skill in ("", *kinds)
    }
    none, own = mean(cells[""].values()), mean(cells[kind][kind] for kind in kinds)
    other = mean(cells[skill][kind] for kind in kinds for skill in kinds if skill != kind)
    assert 20 <= none <= 50 and own >= none + 20
    assert own >= other + margin
    if world == "webshop_trips":
        assert abs(other - none) < 10

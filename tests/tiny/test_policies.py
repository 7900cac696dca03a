"""The shipped policies: beside their recipes and banks, at play, and with and without a skill. They load offline."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.banks import sentences_of
from fakes.sweeps import mostly_full
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.own_task.warm_start.tiny import CONTEXT, ROLES, tiny_model
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.loading import load
from alignopsd_trl.results.play import evaluate
from alignopsd_trl.skills import SkillBank, skill_source
from assets.tiny_policies import explorers, readers, reading, shoppers
from assets.tiny_policies.curricula import CURRICULA, guidance
from assets.tiny_policies.demonstrations import demonstrations
from assets.tiny_policies.make_policy import measure
from assets.tiny_policies.tokenizer import build_tokenizer

READING = {"webshop_trips": "tiny_trips", "searchqa_hops": "tiny_hops", "alfworld_pairs": "tiny_pairs"}
POLICIES = {"webshop_tiny": "tiny", "searchqa_tiny": "tiny_searchqa", "alfworld_tiny": "tiny_alfworld", **READING}
"""World -> its policy; those of `READING` read their skill."""
PLAYERS = {"webshop_tiny": shoppers.play, "searchqa_tiny": readers.play, "alfworld_tiny": explorers.play}


def tokenizer_of(world: str) -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED_MODELS[POLICIES[world]], local_files_only=True)


def model_of(world: str) -> Any:
    folder = SHIPPED_MODELS[POLICIES[world]]
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="float32").eval()


def bank_of(world: str) -> SkillBank:
    setting = CURRICULA[world].setting
    return SkillBank.load(setting.skill_bank, load_encoder(setting.encoder))


@pytest.mark.parametrize("world", POLICIES)
def test_a_policy_is_small_and_the_recipe_has_what_it_was_made_for(world: str, tmp_path: Path) -> None:
    setting, folder = CURRICULA[world].setting, SHIPPED_MODELS[POLICIES[world]]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10 * 2**20
    kept, expected = json.loads((folder / "recipe.json").read_text(encoding="utf-8")), setting.to_dict()
    assert {name: kept[name] for name in expected} == expected
    chosen, config, model = parse(world, ["--output_dir", str(tmp_path)])
    assert (chosen.environment, model.model_name_or_path) == (setting.environment, POLICIES[world])
    for name in ("max_prompt_length", "max_completion_length", "skill_tokens"):
        assert getattr(config, name) == getattr(setting, name), name


@pytest.mark.parametrize("world", ["webshop_tiny", *READING])
def test_every_word_of_the_bank_is_known(world: str) -> None:
    tokenizer = tokenizer_of(world)
    for text in sentences_of(SkillBank.load(CURRICULA[world].setting.skill_bank)):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and len(ids) <= 2 * len(text.split())


@pytest.mark.parametrize("world", PLAYERS)
def test_demonstrations_lose_nothing_and_fit(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, tokenizer, bank, options = CURRICULA[world].setting, tokenizer_of(world), bank_of(world), {}
    if world == "alfworld_tiny":
        pytest.importorskip("textworld")
        pytest.importorskip("fast_downward")
        monkeypatch.setenv("ALIGNOPSD_CACHE", str(tmp_path))
        options = {"counts": {"train": 24, "valid_seen": 12}}
    suite = load(world, **setting.environment_options | options)
    episodes = [(suite.factory(), row) for row in suite.panel(setting.panel).rows[:40]]
    for shown in demonstrations(episodes, PLAYERS[world], partial(guidance, bank), seed=3):
        for text in (shown.prompt, shown.response):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids) == text
            if world == "searchqa_tiny":
                assert len(ids) < 1.5 * len(text.split()) + 40, text
            else:
                assert not any(token.startswith("<0x") for token in tokenizer.convert_ids_to_tokens(ids)), text
        assert len(tokenizer(shown.response)["input_ids"]) < setting.max_completion_length
    source = skill_source(bank, tokenizer, setting.skill_tokens)
    fixed = demonstrations(episodes, PLAYERS[world], lambda text, draw: source(text, None, None)[0], seed=3)
    chats = [[{"role": "user", "content": shown.prompt}] for shown in fixed]
    encoded = tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    long = sum(len(ids) > setting.max_prompt_length for ids in encoded)
    assert long <= (0.05 * len(encoded) if world == "alfworld_tiny" else 0), "few lose history"


def _cut(backend: Any, text: str) -> list[Any]:
    return backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))


def test_the_maker_makes_what_is_shipped() -> None:
    curriculum, tokenizer = CURRICULA["webshop_tiny"], tokenizer_of("webshop_tiny")
    made = tiny_model(tokenizer, layers=4).config.to_dict()
    shipped = AutoConfig.from_pretrained(SHIPPED_MODELS["tiny"], local_files_only=True).to_dict()
    free = {"architectures", "max_position_embeddings", "initializer_range", "dtype", "transformers_version"}
    assert {name for name in made.keys() - free - {"_name_or_path"} if made[name] != shipped[name]} == set()
    anew = build_tokenizer([*ROLES, "find me"], CONTEXT, curriculum.phrases, curriculum.pieces)
    cut = [_cut(one.backend_tokenizer, "click[1234567890] 'wool, (22.5) 123'") for one in (anew, tokenizer)]
    assert cut[0] == cut[1] and len(cut[0]) == 13
    assert anew.chat_template == tokenizer.chat_template and anew.eos_token == tokenizer.eos_token


@pytest.mark.parametrize("world", READING)
def test_one_command_runs_the_rounds_that_the_recipe_beside_the_weights_names(world: str) -> None:
    made = json.loads((SHIPPED_MODELS[POLICIES[world]] / "recipe.json").read_text(encoding="utf-8"))["made_with"]
    rounds = [made]
    while "start" in rounds[-1]:
        rounds.append(rounds[-1]["start"])
    name = world
    for flags in reversed(rounds):
        training = CURRICULA[name].training
        assert {one: flags.get(one) for one in training} == dict(training), name
        name = CURRICULA[name].then
    assert name == ""


@pytest.mark.parametrize(("world", "turns"), mostly_full([("searchqa_hops", (3, 8)), ("alfworld_pairs", (7, 15))]))
def test_the_policy_plays_within_its_limits(world: str, turns: tuple[int, int]) -> None:
    setting, suite, model = CURRICULA[world].setting, load(world), model_of(world)
    assert model.num_parameters() < 2e6
    limits = {name: getattr(setting, name) for name in ("max_prompt_length", "max_completion_length")}
    panel = suite.panel("test").head(16)
    result, _ = evaluate(model, tokenizer_of(world), suite.factory, panel, temperature=1.0, **limits)
    assert result.invalid_actions < 0.05 and turns[0] <= result.turns <= turns[1]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "gain"), [("webshop_tiny", 15), ("searchqa_tiny", 15), ("alfworld_tiny", 10)])
def test_the_skill_helps(world: str, gain: int) -> None:
    setting = CURRICULA[world].setting
    suite = load(world, **setting.environment_options)
    rows = measure(model_of(world), tokenizer_of(world), suite, bank_of(world), setting, tasks=120)
    for plain, skilled in zip(rows[::2], rows[1::2], strict=True):
        assert world == "alfworld_tiny" or 10 <= plain["success"]["mean"] <= 50
        assert skilled["success"]["mean"] >= plain["success"]["mean"] + gain
        assert plain["invalid_actions"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("world", READING)
def test_the_policy_reads_its_skill(world: str) -> None:
    found = reading.main(["--environment", world, "--tasks", "120"])["summary"]
    assert 20 <= found["none"] <= 50 and found["own"] >= found["none"] + 20
    if world == "webshop_trips":
        assert abs(found["other"] - found["none"]) < 10
    else:
        assert found["own"] >= found["other"] + {"searchqa_hops": 10, "alfworld_pairs": 15}[world]

"""Explorers of small rooms, and the policy that learnt from them. What needs the engine is skipped without it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import alignopsd_trl
from alignopsd_trl.environments.alfworld import AlfWorldPrompt
from alignopsd_trl.environments.alfworld.engine.rooms import layout, scenes
from alignopsd_trl.environments.base import Record, Suite, View
from alignopsd_trl.environments.loading import load
from assets.tiny_policies import explorers
from assets.tiny_policies.curricula import CURRICULA

CURRICULUM = CURRICULA["alfworld_tiny"]
SETTING = CURRICULUM.setting
FOLDER = Path(alignopsd_trl.__file__).parent / "data" / "tiny_alfworld"
INSTALL = 'needs the extra: pip install "alignopsd-trl[alfworld]" (a C and a C++ compiler, make, cmake)'


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """The recipe's environment with twelve games."""
    pytest.importorskip("textworld", reason=INSTALL)
    pytest.importorskip("fast_downward", reason=INSTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALIGNOPSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        made = load("alfworld_tiny", counts={"train": 24, "valid_seen": 12})
        made.tasks("train")
        yield made


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


def test_the_policy_writes_a_command(tokenizer):
    observation = "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1."
    commands = ("examine desk 1", "go to bed 1", "help", "inventory", "look", "take mug 1 from desk 1")
    records = (Record(1, "", "go to desk 1", observation),)
    text = AlfWorldPrompt("tiny").render(View("put a mug in desk.", observation, commands, records, 1))
    ids = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
    assert text in tokenizer.decode(ids)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)
    with torch.no_grad():
        answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=SETTING.max_completion_length)
    response = tokenizer.decode(answer[0, len(ids) :], skip_special_tokens=True)
    assert response.startswith("<think>") and response.endswith("</action>")


def test_small_rooms_have_what_their_kind_needs():
    for kind in ("kitchen", "livingroom", "bedroom", "bathroom"):
        sizes = {len(layout(scene, (5, 7)).receptacles) for scene in scenes(kind, held_out=False)}
        assert sizes == {8} if kind == "bathroom" else sizes <= {5, 6, 7}, kind


def test_care_pays(suite: Suite):
    environment, rows, draw = suite.factory(), list(suite.tasks("train")), random.Random(0)
    won = {True: 0, False: 0}
    for careful in won:
        for row in rows:
            explorers.play(environment, row, careful, draw)
            won[careful] += environment.step("look").won
    assert won[True] >= 0.9 * len(rows) and won[False] <= 0.75 * len(rows)


def test_a_careful_answer_stands_beside_each_careless_one(suite: Suite):
    turns = explorers.play(suite.factory(), suite.tasks("train")[0], False, random.Random(1))
    assert any(turn.response != turn.careful() for turn in turns)
    for turn in turns:
        action = turn.careful().partition("<action>")[2].removesuffix("</action>")
        assert action in turn.view.admissible

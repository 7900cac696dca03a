"""Small rooms, and the policy that learnt in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import alignopsd_trl
from alignopsd_trl.environments.alfworld import AlfWorldPrompt, Explorer, play
from alignopsd_trl.environments.alfworld.engine.rooms import layout, scenes
from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.environments.loading import load

FOLDER = Path(alignopsd_trl.__file__).parent / "data" / "tiny_alfworld"


INSTALL = 'needs the extra: pip install "alignopsd-trl[alfworld]" (a C and a C++ compiler, make, cmake)'


def test_care_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("textworld", reason=INSTALL)
    pytest.importorskip("fast_downward", reason=INSTALL)
    monkeypatch.setenv("ALIGNOPSD_CACHE", str(tmp_path))
    suite = load("alfworld_tiny", counts={"train": 24, "valid_seen": 12})
    environment, rows = suite.factory(), list(suite.tasks("train"))
    careful, careless = (
        sum(bool(play(environment, Explorer(rate, seed), row)[-1].step.won) for seed, row in enumerate(rows))
        for rate in (0.03, 0.55)
    )
    assert careful >= 0.9 * len(rows) and careless <= 0.75 * len(rows)


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
        answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40)
    response = tokenizer.decode(answer[0, len(ids) :], skip_special_tokens=True)
    assert response.startswith("<think>") and response.endswith("</action>")


def test_small_rooms_have_what_their_kind_needs():
    for kind in ("kitchen", "livingroom", "bedroom", "bathroom"):
        sizes = {len(layout(scene, (5, 7)).receptacles) for scene in scenes(kind, held_out=False)}
        assert sizes == {8} if kind == "bathroom" else sizes <= {5, 6, 7}, kind

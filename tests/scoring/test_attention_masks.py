"""Attention gets a mask only where causal order is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from counting import attention_calls
from fakes.toy import build_tokenizer
from fakes.trainers import difference, losses, make_trainer, trained
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

from alignopsd_trl.scoring.packing import Ragged
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **SHAPE, **special)).save_pretrained(tmp_path / "grouped")
    return tmp_path / "grouped"


def _trained(folder: Path, policy: Path, **options: Any) -> Any:
    trainer = trained(folder, policy=policy, beta=0.01, optim="sgd", **options)
    return trainer


@pytest.mark.parametrize("options", [{}, {"tokens_per_forward": 300, "entropy_coef": 0.01}])
def test_update_without_a_mask_is_the_update_with_one(
    tmp_path: Path, policy: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _trained(tmp_path / "causal", policy, **options)
    monkeypatch.setattr("alignopsd_trl.scoring.trl_scoring.why_not_shared", lambda trainer: "it is told so")
    expected = _trained(tmp_path / "masked", policy, **options)
    assert losses(found) == pytest.approx(losses(expected), abs=1e-6)
    assert difference(found.seen_gradients[0], expected.seen_gradients[0]) < 2e-6
    assert max(float(value.abs().max()) for value in expected.seen_gradients[0].values()) > 1e-3


def test_only_branches_and_sampling_are_masked(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, policy=policy, script=False, method="align_opsd", beta=0.01)
    with attention_calls(monkeypatch, lambda: trainer.phases.current) as counted:
        trainer.train()
    assert counted["update"].keys() == {"causal"}
    assert counted["self_check"]["causal"] > 0, "rows without branches"
    assert counted["scoring"].keys() == {"mask", "repeated"}, "branches, and responses behind known prompts"
    assert counted["rollout"]["step"] > counted["rollout"]["mask"] > 0


def test_scoring_of_pairs_alone_needs_no_mask(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, policy=policy, share_prefixes=False)
    prompts, responses = Ragged.of([[5, 6, 7], [8]]), Ragged.of([[9, 3], [4, 4, 5]])
    rows, forwards = torch.arange(2), Forwards(pad_id=0, budget=100)
    with attention_calls(monkeypatch) as counted:
        found = score_pairs(PolicyScorer(trainer), prompts, responses, rows, rows, forwards)
    monkeypatch.setattr("alignopsd_trl.scoring.trl_scoring.why_not_shared", lambda trainer: "it is told so")
    expected = score_pairs(PolicyScorer(trainer), prompts, responses, rows, rows, forwards)
    assert counted[None] == {"causal": SHAPE["num_hidden_layers"]}
    assert torch.allclose(found, expected, atol=1e-5) and bool((expected != 0).any())


def test_sliding_windows_keep_their_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    config = MistralConfig(vocab_size=len(tokenizer), sliding_window=8, pad_token_id=tokenizer.pad_token_id, **SHAPE)
    MistralForCausalLM(config).save_pretrained(tmp_path / "windows")
    trainer = make_trainer(tmp_path, policy=tmp_path / "windows")
    with attention_calls(monkeypatch, lambda: trainer.phases.current) as counted:
        trainer.train()
    assert counted["update"].keys() == {"mask", "repeated"}

"""The vocabulary's logits never exist for a whole batch at once, neither in scoring nor in the update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from counting import Operations
from fakes.toy import build_tokenizer
from fakes.trainers import difference, losses, make_trainer
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

VOCABULARY, TILE = 4096, 40  # more than the 32 rows of the head, transposed


def _trained(folder: Path, **options: Any) -> tuple[Any, int]:
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "policy")
    trainer = make_trainer(folder, policy=folder / "policy", optim="sgd", **options)
    with Operations(columns=VOCABULARY) as counted:
        trainer.train()
    return trainer, counted.most_rows


@pytest.mark.parametrize("options", [{"method": "align_opsd", "beta": 0.01}, {"method": "opsd"}])
@pytest.mark.full
def test_logits_are_made_tile_by_tile(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if options["method"] == "opsd":
        options = options | {"method_options": {"form": "vocabulary"}}
    monkeypatch.setattr("alignopsd_trl.scoring.model.TILE_ON_CPU", 10**6)
    expected, whole = _trained(tmp_path / "whole", **options)
    monkeypatch.setattr("alignopsd_trl.scoring.model.TILE_ON_CPU", TILE)
    monkeypatch.setattr(trl_utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", VOCABULARY)
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", TILE)
    found, rows = _trained(tmp_path / "tiles", **options)
    positions = int(found.seen_rows[0]["completion_mask"].sum())
    assert rows == TILE < positions <= whole
    assert losses(found) == pytest.approx(losses(expected), abs=1e-6)
    assert difference(found.seen_gradients[0], expected.seen_gradients[0]) < 1e-6

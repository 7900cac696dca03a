"""The plan's estimate of an update against bytes that are counted."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from fake_memory import update_peak
from transformers import Qwen2Config

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch
from alignopsd_trl.launch.memory import GIB, estimate, shape_of
from alignopsd_trl.launch.presets import BACKBONES

ROOT = Path(__file__).parents[1]


def _config(name: str) -> Qwen2Config:
    shape = BACKBONES[name]
    heads = {"0.5b": (14, 2), "1.5b": (12, 2), "3b": (16, 2), "7b": (28, 4)}[name]
    return Qwen2Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=name != "7b",
        max_position_embeddings=32_768,
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_shapes_of_the_table_are_those_of_their_configs(name: str) -> None:
    found, known = shape_of(BACKBONES[name].hub_id, _config(name)), BACKBONES[name]
    assert found.parameters == pytest.approx(known.parameters, rel=1e-3)
    assert (found.kv_width, found.intermediate) == (known.kv_width, known.intermediate)


@pytest.mark.full
@pytest.mark.parametrize("name", BACKBONES)
def test_estimate_is_within_a_tenth_of_what_is_counted(name: str, tmp_path: Path) -> None:
    args = AlignOPSDConfig(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=8, max_prompt_length=4096, gradient_checkpointing=True
    )
    found = estimate(BACKBONES[name], args, Launch(), gpu_gib=141).training
    parts = sum(found[part] for part in ("weights", "gradients", "optimizer", "compute copy", "activations"))
    assert parts == pytest.approx(update_peak(_config(name), 3, 4608) / GIB, rel=0.1)


@pytest.mark.full
def test_the_table_of_the_page_is_what_the_plan_says() -> None:
    found = runpy.run_path(str(ROOT / "benchmarks" / "one_gpu.py"))["table"]()
    assert found in (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")

"""Prompts shared in packed rows: the log-probs of each pair alone, for every model type that is said to be proven."""

from __future__ import annotations

from fakes.models import SHAPE
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from alignopsd_trl.scoring.packing import Packed, TreeRow, why_plain


def test_a_packed_row_by_hand() -> None:
    packed = Packed.of([TreeRow.behind([5, 6, 7], [[1, 2], [3]]), TreeRow.behind([8], [[4]])], pad_id=0)
    assert packed.ids.tolist() == [[5, 6, 7, 1, 7], [8, 0, 0, 0, 0]]
    assert packed.position.tolist() == [[0, 1, 2, 3, 2], [0, 0, 0, 0, 0]]
    assert packed.labels.tolist() == [[-100, -100, 1, 2, 3], [4, -100, -100, -100, -100]]
    assert packed.segment.tolist() == [[0, 0, 1, 1, 2], [1, -1, -1, -1, -1]]
    assert packed.mask()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_what_a_mask_would_change_is_named() -> None:
    model = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE))
    assert "model_type='mistral'" in why_plain(model.config, "sdpa")
    sliding = Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert "sliding_attention" in why_plain(AutoModelForCausalLM.from_config(sliding).config, "sdpa")
    stretched = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    assert "dynamic" in why_plain(AutoModelForCausalLM.from_config(stretched).config, "sdpa")
    assert "flash_attention_2" in why_plain(Qwen2Config(**SHAPE), "flash_attention_2")

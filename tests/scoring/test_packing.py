"""Prompts shared in packed rows: the log-probs of each pair alone, for every model type that is said to be proven."""

from __future__ import annotations

import pytest
import torch
from fakes.models import CONFIGS, SHAPE
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from trl.trainer.utils import add_fused_lm_head

from alignopsd_trl.scoring.packing import PROVEN, Packed, TreeRow, as_attention_mask, why_plain
from alignopsd_trl.scoring.trl_scoring import head_on_labels


def _rows() -> list[tuple[list[int], list[list[int]]]]:
    draw = torch.Generator().manual_seed(1)

    def text(length: int) -> list[int]:
        return torch.randint(3, 53, (length,), generator=draw).tolist()

    return [(text(9), [text(4), text(1), text(7)]), (text(1), [text(3), text(5)]), (text(17), [text(6)])]


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


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PROVEN)
def test_packed_scores_are_those_of_each_pair_alone(kind: str, attention: str) -> None:
    torch.manual_seed(0)
    config = CONFIGS[kind](**SHAPE)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    assert why_plain(model.config, attention) is None
    add_fused_lm_head(model, temperature=0.7)
    rows = _rows()
    packed = Packed.of([TreeRow.behind(*row) for row in rows], pad_id=0)
    mask = as_attention_mask(packed.mask(), attention)
    with torch.no_grad(), head_on_labels(torch.device("cpu")):
        found = model(
            input_ids=packed.ids,
            attention_mask=mask,
            position_ids=packed.position,
            shift_labels=packed.labels,
            fused_lm_head=True,
        ).log_probs
    expected = []
    for prompt, responses in rows:
        for response in responses:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.7
            expected.append(logits.log_softmax(-1).gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1))
    assert torch.allclose(found[packed.labels != -100], torch.cat(expected), atol=1e-5)
    assert not found[packed.labels == -100].any()


def test_what_a_mask_would_change_is_named() -> None:
    model = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE))
    assert "model_type='mistral'" in why_plain(model.config, "sdpa")
    sliding = Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert "sliding_attention" in why_plain(AutoModelForCausalLM.from_config(sliding).config, "sdpa")
    stretched = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    assert "dynamic" in why_plain(AutoModelForCausalLM.from_config(stretched).config, "sdpa")
    assert "flash_attention_2" in why_plain(Qwen2Config(**SHAPE), "flash_attention_2")


def test_the_head_takes_labelled_positions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(3, 53, (4, 20))
    labels = ids.clone()
    labels[:, :15] = -100
    seen, results = [], []
    inner = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda left, *rest, **options: seen.append(len(left)) or inner(left, *rest, **options)
    )
    for narrow in (False, True):
        model.zero_grad()
        with head_on_labels(torch.device("cpu" if narrow else "cuda")):
            output = model(input_ids=ids, labels=labels, fused_lm_head=True)
        (output.log_probs.sum() + output.entropy.sum()).backward()
        results.append((output.log_probs, output.entropy, model.model.layers[0].mlp.up_proj.weight.grad.clone()))
    assert seen[0] == 4 * 19 and min(seen) == 4 * 5
    for wide, narrow in zip(*results, strict=True):
        assert torch.allclose(wide, narrow, atol=1e-5)

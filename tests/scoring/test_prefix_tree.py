"""Dialogues encoded once: turns along a path, other responses beside it; each scored as if it were alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.models import CONFIGS, SHAPE
from fakes.trainers import log_probs_of, make_trainer
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from trl.trainer.utils import add_fused_lm_head

from alignopsd_trl.scoring.packing import PROVEN, Packed, Pairs, PairsOfRow, Ragged, TreeRow, rows_of_pairs, why_plain
from alignopsd_trl.scoring.teacher_forcing import Forwards, score_pairs
from alignopsd_trl.scoring.trl_scoring import PolicyScorer, head_on_labels


def _pairs(*texts: tuple[list[int], list[int]]) -> Pairs:
    prompts, responses = zip(*texts, strict=True)
    every = torch.arange(len(texts))
    return Pairs(Ragged.of(prompts), Ragged.of(responses), every, every)


DIALOGUE = [([1, 2], [3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6, 7], [8])]


def test_turns_of_a_dialogue_stand_along_one_path_and_others_branch_off() -> None:
    pairs = _pairs(*DIALOGUE, ([1, 2, 3, 4], [9, 9]), ([1, 9], [3]), ([1, 2], []))
    found = rows_of_pairs(pairs, 10_000, branch=True)
    assert found == [PairsOfRow([5, 0, 1, 2], [3]), PairsOfRow([4], [])]
    tree_row = pairs.tree_row(found[0])
    assert tree_row == TreeRow([1, 2, 3, 4, 5, 6, 7, 8], [(2, 0), (2, 1), (4, 2), (7, 1)], [(4, [9, 9])])
    assert len(tree_row) == 9 and tree_row.places() == [(1, 0), (1, 1), (3, 2), (6, 1), (7, 2)]
    assert sorted(map(tuple, (one.along for one in rows_of_pairs(pairs, 10_000, branch=False)))) == [
        (3,),
        (4,),
        (5, 0, 1, 2),
    ]


def test_responses_that_were_not_kept_branch_off_their_own_dialogue() -> None:
    texts = [([1, 2], [3, 9]), ([1, 2, 9, 4], [5, 9]), ([1, 2, 9, 4, 9, 6], [7, 9])]
    (found,) = rows_of_pairs(_pairs(*texts), 10_000, branch=True)
    assert found.along == [2] and sorted(found.beside) == [0, 1]


def test_a_row_of_branches_has_its_limit() -> None:
    texts = [(list(range(1, 41)), [50 + number] * 4) for number in range(12)]
    found = rows_of_pairs(_pairs(*texts), 4 * 60, branch=True)
    assert sorted(pair for one in found for pair in one.all) == list(range(12))
    assert [len(one.all) for one in found] == [5, 5, 2]
    assert [len(one.all) for one in rows_of_pairs(_pairs(*texts), 4, branch=True)] == [3] * 4, (
        "a quarter more than the path"
    )


def test_a_row_by_hand() -> None:
    packed = Packed.of([TreeRow([1, 2, 3, 4, 5], [(2, 1)], [(3, [8, 9])]), TreeRow([6, 7], [(1, 1)])], pad_id=0)
    assert packed.ids.tolist() == [[1, 2, 3, 4, 3, 8], [6, 0, 0, 0, 0, 0]]
    assert packed.position.tolist() == [[0, 1, 2, 3, 2, 3], [0] * 6]
    assert packed.labels[0].tolist() == [-100, 3, -100, -100, 8, 9] and packed.labels[1, 0] == 7
    assert packed.mask()[0, 0].int().tolist()[4:] == [[1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]
    plain = Packed.of([TreeRow([1, 2, 3], [(1, 2)]), TreeRow([6, 7], [(1, 1)])], pad_id=0)
    assert packed.branched and plain.attention_mask("sdpa") is None


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


def _requests() -> tuple[Ragged, Ragged, torch.Tensor, torch.Tensor]:
    """Two dialogues of six turns from one opening; each turn's own response and those of other turns."""
    draw = torch.Generator().manual_seed(3)

    def text(length: int) -> list[int]:
        return torch.randint(3, 40, (length,), generator=draw).tolist()

    opening, prompts, responses, pairs = text(20), [], [], []
    for dialogue in range(2):
        prompt = list(opening)
        for turn in range(6):
            prompts.append(list(prompt))
            responses.append(text(int(torch.randint(1, 9, (1,), generator=draw))))
            prompt += responses[-1] + text(5)
            pairs.append((6 * dialogue + turn,) * 2)
    others = torch.randint(0, 12, (30, 2), generator=draw).tolist()
    rows = torch.tensor([*pairs, *others])
    return Ragged.of(prompts), Ragged.of(responses), rows[:, 0], rows[:, 1]


@pytest.mark.parametrize(("shared", "nested"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("budget", [60, 700, 100_000])
@pytest.mark.parametrize("lora", [False, True])
def test_scores_are_those_of_each_pair_alone(
    tmp_path: Path, shared: bool, nested: bool, budget: int, lora: bool
) -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trainer = make_trainer(tmp_path, parts={"peft_config": config} if lora else None)
    model: Any = trainer.model
    body = (model.get_base_model() if lora else model).base_model
    prompts, responses, prompt_rows, response_rows = _requests()
    tokens, inner = [0], body.forward

    def counted(*arguments, input_ids=None, **options):
        tokens[0] += input_ids.numel()
        return inner(*arguments, input_ids=input_ids, **options)

    body.forward = counted
    forwards = Forwards(pad_id=0, budget=budget, shared=shared, nested=nested)
    scores = score_pairs(PolicyScorer(trainer), prompts, responses, prompt_rows, response_rows, forwards)
    encoded = tokens[0]
    assert scores.dtype == torch.float32 and scores.shape == (len(prompt_rows), int(responses.length.max()))
    for row, (prompt, response) in enumerate(zip(prompt_rows.tolist(), response_rows.tolist(), strict=True)):
        context, answer = prompts.row(prompt), responses.row(response)
        expected = log_probs_of(trainer.model, context, answer)
        assert torch.allclose(scores[row, : len(answer)], expected, atol=1e-5)
        assert not scores[row, len(answer) :].any()
    if shared and budget > 700:
        whole = max(prompts.length.tolist()) + 8
        assert encoded < 3 * whole + sum(responses.length[response_rows].tolist())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PROVEN)
def test_branches_in_the_middle_score_as_alone_in_every_proven_model(kind: str, attention: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**SHAPE), attn_implementation=attention).eval()
    assert why_plain(model.config, attention) is None
    add_fused_lm_head(model, temperature=0.7)
    path = torch.randint(3, 53, (30,)).tolist()
    tree_rows = [
        TreeRow(path, [(4, 3), (20, 6)], [(4, [5, 6, 7]), (1, [9]), (30, [4, 4]), (11, [8, 3])]),
        TreeRow(path[:9], [(2, 7)]),
    ]
    for rows in (tree_rows, tree_rows[1:], tree_rows[1:] * 2):
        packed = Packed.of(rows, pad_id=0)
        with torch.no_grad(), head_on_labels(torch.device("cpu")):
            found = model(
                input_ids=packed.ids,
                attention_mask=packed.attention_mask(attention),
                position_ids=packed.position,
                shift_labels=packed.labels,
                fused_lm_head=True,
            ).log_probs
        for number, tree_row in enumerate(rows):
            asked = [(tree_row.path[:first], tree_row.path[first : first + length]) for first, length in tree_row.spans]
            asked += [(tree_row.path[:before], response) for before, response in tree_row.branches]
            for (prompt, response), (first, length) in zip(asked, tree_row.places(), strict=True):
                expected = log_probs_of(model, prompt, response, temperature=0.7)
                assert torch.allclose(found[number, first : first + length], expected, atol=1e-5)

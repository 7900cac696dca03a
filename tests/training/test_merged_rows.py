"""Turns that go on from one another in one row of the update: loss and gradient are those of a row a turn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.toy import build_model, build_tokenizer
from fakes.trainers import FakeSampler, difference, hand_loss, losses, make_trainer, trained, with_sampler
from hypothesis import given
from hypothesis import strategies as st

from alignopsd_trl.training.turn_rows import Layout, collate_rows
from alignopsd_trl.turns import Thought, Trajectory, Turn, TurnBatch

TALK = {"history": "conversation", "max_prompt_length": 400, "optim": "sgd", "learning_rate": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"method": "grpo"},
    "align_opsd": {"method": "align_opsd", "tokens_per_forward": 300},
    "iterations": {"method": "align_opsd", "num_iterations": 3, "max_steps": 3, "learning_rate": 1.0},
    "cispo": {"method": "align_opsd", "loss_type": "cispo", "num_iterations": 2, "max_steps": 2},
    "reference": {"method": "align_opsd", "beta": 0.1, "num_iterations": 2, "max_steps": 4, "entropy_coef": 0.01},
    "bias_corrected": {
        "method": "grpo",
        "beta": 0.1,
        "use_bias_correction_kl": True,
        "num_iterations": 2,
        "max_steps": 2,
    },
    "penalty": {"method": "grpo", "invalid_action_penalty": 0.1, "mask_truncated_completions": True, "delta": 4.0},
    "auxiliary": {"method": "align_opsd", "auxiliary_loss": "alignment", "auxiliary_coefficient": 0.5},
    "distilled": {"method": "sdar", "max_steps": 2},
    "vocabulary": {"method": "opsd", "method_options": {"form": "vocabulary"}},
    "distribution": {
        "method": "align_opsd",
        "auxiliary_loss": "distribution",
        "distribution_weighting": "span",
        "similarity_threshold": 0.1,
    },
    "budget": {"method": "align_opsd", "tokens_per_forward": 300, "skip_zero_advantage": False},
    "checkpointing": {"method": "align_opsd", "gradient_checkpointing": True},
}


def _run(folder: Path, merge: bool, **options: Any):
    trainer = trained(folder, merge_rows=merge, **{**TALK, **options})
    return trainer


@pytest.mark.parametrize("case", mostly_full(CASES, quick=2))
def test_loss_and_gradient_are_those_of_a_row_a_turn(tmp_path: Path, case: str) -> None:
    rows, merged = (_run(tmp_path / str(merge), merge, **CASES[case]) for merge in (False, True))
    assert len(merged.seen_rows[0]["advantages"]) == 8 < len(rows.seen_rows[0]["advantages"])
    assert merged.seen_rows[0]["num_items_in_batch"] == rows.seen_rows[0]["num_items_in_batch"]
    assert losses(merged) == pytest.approx(losses(rows), abs=1e-6)
    assert len(merged.seen_gradients) == len(rows.seen_gradients)
    for left, right in zip(merged.seen_gradients, rows.seen_gradients, strict=True):
        scale = max(1.0, *(float(value.abs().max()) for value in right.values()))
        assert difference(left, right) < 1e-6 * scale
        assert max(float(value.abs().max()) for value in right.values()) > 1e-3


def test_the_loss_is_the_hand_computed_one(tmp_path: Path) -> None:
    trainer = _run(tmp_path, True, method="align_opsd", learning_rate=0.0)
    expected, gradient = hand_loss(build_model(trainer.processing_class), trainer.seen_rows)
    assert losses(trainer)[0] == pytest.approx(expected, abs=1e-6)
    assert difference(trainer.seen_gradients[0], gradient) < 1e-5
    log = trainer.state.log_history[0]
    assert log["conversation/runs"] == 1.0 and log["conversation/broken_prefixes"] == 0.0


@pytest.mark.parametrize("mode", mostly_full(["token_truncate", "sequence_mask"]))
def test_the_correction_of_a_sampler_stays_that_of_the_turn(tmp_path: Path, mode: str) -> None:
    runs = []
    for merge in (False, True):
        options = {"method": "grpo", "vllm_importance_sampling_mode": mode, "merge_rows": merge}
        trainer = make_trainer(tmp_path / str(merge), **{**TALK, **options})
        sampler = with_sampler(trainer, 0.1)
        assert isinstance(sampler, FakeSampler)
        trainer.train()
        runs.append(trainer)
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)
    assert difference(runs[1].seen_gradients[0], runs[0].seen_gradients[0]) < 1e-6


@pytest.mark.parametrize("method", ["grpo", "opsd"])
def test_the_head_takes_what_the_loss_reads_alone(tmp_path: Path, method: str) -> None:
    options = {"method_options": {"form": "vocabulary"}} if method == "opsd" else {}
    trainer = make_trainer(tmp_path, method=method, skip_zero_advantage=False, **TALK, **options)
    head, passes, inner = [0, 0], [0, 0], trainer.model.forward

    def forward(*arguments: Any, **inputs: Any) -> Any:
        output = inner(*arguments, **inputs)
        if torch.is_grad_enabled() and "labels" in inputs:
            head[0] += int((inputs["labels"] != -100).sum())
            passes[0] += 1
        elif torch.is_grad_enabled():
            head[1] = max(head[1], output.logits.size(1))
        return output

    def body(*_: Any) -> None:
        passes[1] += torch.is_grad_enabled()

    trainer.model.forward = forward
    trainer.model.model.layers[0].register_forward_hook(body)
    trainer.train()
    (rows,) = trainer.seen_rows
    assert head[0] == int(rows["tool_mask"].sum()) < int(rows["completion_mask"].sum())
    assert (method == "grpo") == (head[1] == 0) and head[1] < rows["completion_mask"].size(1)
    assert passes[0] == passes[1], "the auxiliary loss reads the hidden states of TRL's own forward"


def test_a_window_is_not_merged(tmp_path: Path) -> None:
    trainer = _run(tmp_path, True, method="grpo", history="window")
    turns = int((trainer.seen_rows[0]["tool_mask"].sum(1) > 0).sum())
    assert turns == len(trainer.seen_rows[0]["advantages"]) > 8
    assert "conversation/runs" not in trainer.state.log_history[0]


def test_a_template_that_breaks_the_prefix_begins_new_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = build_tokenizer()
    content = "{{ message['content'] }}"
    stripped = (
        "{{ message['content'].split('</think>')[-1] if message['role'] == 'assistant' else message['content'] }}"
    )
    tokenizer.chat_template = tokenizer.chat_template.replace(content, stripped)
    runs = []
    for merge in (False, True):
        trainer = make_trainer(tmp_path / str(merge), merge_rows=merge, method="grpo", **TALK)
        trainer.processing_class.chat_template = tokenizer.chat_template
        trainer.train()
        runs.append(trainer)
    rows, merged = (len(trainer.seen_rows[0]["advantages"]) for trainer in runs)
    log = runs[1].state.log_history[0]
    assert 8 < merged <= rows and log["conversation/runs"] == merged / 8
    assert log["conversation/broken_prefixes"] == merged / 8 - 1
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)
    assert capsys.readouterr().out.count("past_thinking='keep' would save rows") == 2, "once a run"


def _turn(number: int, prompt: list[int], response: list[int]) -> Turn:
    return Turn(number, "", prompt, prompt, response, "", Thought("", ""), "", True, "")


def _batch() -> TurnBatch:
    """Two trajectories; the second has a break before its third turn."""
    one = [_turn(0, [1, 2], [3, 4]), _turn(1, [1, 2, 3, 4, 5], [6]), _turn(2, [1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9])]
    two = [_turn(0, [1, 2], [5]), _turn(1, [1, 2, 5, 6], []), _turn(2, [1, 6], [7])]
    return TurnBatch.of([Trajectory({}, "t", str(n), turns=turns) for n, turns in enumerate((one, two))], pad_id=0)


def test_a_merged_row_by_hand() -> None:
    batch = _batch()
    layout = Layout.of(batch, merge=True)
    assert layout.prompts == [[1, 2], [1, 2], [1, 6]]
    assert layout.completions == [[3, 4, 5, 6, 7, 8, 9, 9, 9], [5, 6], [7]]
    assert layout.row.tolist() == [0, 0, 0, 1, 1, 2] and layout.start.tolist() == [0, 3, 6, 0, 2, 0]
    column = torch.arange(1.0, 19.0).view(6, 3)
    turn = torch.arange(1.0, 7.0)[:, None]
    rows = collate_rows(batch, {"advantages": column, "ref_per_token_logps": column, "ratio": turn}, 4, 0, 2, layout)
    assert rows["tool_mask"].tolist() == [
        [1, 1, 0, 1, 0, 0, 1, 1, 1],
        [1] + [0] * 8,
        [1] + [0] * 8,
        [0] * 9,
    ]
    assert rows["advantages"][0].tolist() == [1, 2, 0, 4, 0, 0, 7, 8, 9]
    assert rows["advantages"][1:3, 0].tolist() == [10, 16]
    assert rows["ref_per_token_logps"][0, 2] == -1e4 and rows["ref_per_token_logps"][3, 0] == -1e4
    assert rows["ratio"][0].tolist() == [1, 1, 0, 2, 0, 0, 3, 3, 3]
    assert rows["completion_mask"].sum(1).tolist() == [9, 2, 1, 1]


TOKENS = st.lists(st.integers(3, 6), max_size=4)
TURNS = st.lists(st.tuples(TOKENS, TOKENS.filter(bool), st.booleans()), min_size=1, max_size=6)


@given(st.lists(TURNS, min_size=1, max_size=4), st.booleans())
def test_every_turn_stands_in_its_row_behind_its_own_prompt(dialogues: list, merge: bool) -> None:
    played = []
    for number, parts in enumerate(dialogues):
        turns, prompt = [], [1]
        for place, (response, new, breaks) in enumerate(parts):
            turns.append(_turn(place, list(prompt), response))
            prompt = [2, *new] if breaks else prompt + response + new
        played.append(Trajectory({}, "t", str(number), turns=turns))
    batch = TurnBatch.of(played, pad_id=0)
    layout = Layout.of(batch, merge)
    for number, turn in enumerate(batch.turns):
        row, start = int(layout.row[number]), int(layout.start[number])
        before = layout.prompts[row] + layout.completions[row][:start]
        assert before == turn.prompt_ids
        assert layout.completions[row][start : start + len(turn.response_ids)] == turn.response_ids
    breaks = sum(not two.extends(one) for played in played for one, two in pairwise(played.turns))
    assert len(layout) == (len(dialogues) + breaks if merge else len(batch))
    marks = torch.arange(1, 1 + batch.policy_mask.numel()).view(batch.policy_mask.shape) * batch.policy_mask
    rows = collate_rows(batch, {"marks": marks}, len(layout) + 1, 0, 2, layout)
    assert sorted(rows["marks"][rows["tool_mask"].bool()].tolist()) == sorted(marks[batch.policy_mask].tolist())
    assert torch.equal(
        rows["completion_ids"][rows["tool_mask"].bool()].sort()[0], batch.response_ids[batch.policy_mask].sort()[0]
    )
    assert not rows["marks"][~rows["tool_mask"].bool()].any()


def test_a_row_a_turn_by_hand() -> None:
    batch = _batch()
    turn = torch.arange(1.0, 7.0)[:, None]
    rows = collate_rows(batch, {"ratio": turn, "advantages": torch.ones(6, 3)}, 7, 0, 2)
    assert rows["ratio"].shape == (7, 1) and rows["tool_mask"].sum(1).tolist() == [2, 1, 3, 1, 0, 1, 0]
    assert rows["prompt_mask"].sum(1).tolist() == [2, 5, 8, 2, 4, 2, 1]


@pytest.mark.full
def test_dialogues_are_scored_once_and_their_credit_is_that_of_each_pair_alone(tmp_path: Path) -> None:
    runs, tokens = [], []
    for name, options in {
        "alone": {"share_prefixes": False, "merge_rows": False},
        "nested": {"share_prefixes": False},
        "branched": {},
    }.items():
        trainer = make_trainer(tmp_path / name, method="align_opsd", beta=0.1, num_iterations=2, **{**TALK, **options})
        counted = [0]
        inner = trainer.model.base_model.forward

        def count(*arguments: Any, inner: Any = inner, counted: list[int] = counted, **inputs: Any) -> Any:
            counted[0] += inputs["input_ids"].numel() if not torch.is_grad_enabled() else 0
            return inner(*arguments, **inputs)

        trainer.model.base_model.forward = count
        trainer.train()
        runs.append(trainer)
        tokens.append(counted[0])
    (alone, *others) = ([rows["advantages"] for rows in trainer.seen_rows] for trainer in runs)
    policy = [rows["tool_mask"].bool() for rows in runs[0].seen_rows]
    for trainer, advantages in zip(runs[1:], others, strict=True):
        mask = trainer.seen_rows[0]["tool_mask"].bool()
        assert torch.allclose(advantages[0][mask], alone[0][policy[0]], atol=1e-5)
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            assert torch.allclose(trainer.seen_rows[0][name][mask], runs[0].seen_rows[0][name][policy[0]], atol=1e-5)
    assert tokens[2] < 0.8 * tokens[1] < 0.8 * tokens[0]


def test_a_model_whose_rows_depend_on_their_length_is_not_merged(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model.save_pretrained(tmp_path / "policy")
    with pytest.raises(ValueError, match="merge_rows=True would change .*'dynamic' depends on the length"):
        make_trainer(tmp_path, policy=tmp_path / "policy", **TALK)
    make_trainer(tmp_path, policy=tmp_path / "policy", **TALK, merge_rows=False)

"""What the update computes: balanced sub-chunks by tokens, and no row that can't change it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from fakes.sweeps import mostly_full
from fakes.toy import ToyEnvironment
from fakes.trainers import difference, losses, make_trainer
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerCallback

from alignopsd_trl.records import read_records
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.training.turn_rows import cut_evenly
from alignopsd_trl.turns import Turn

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=50)


class FewWin(ToyEnvironment):
    """Groups of tasks with an odd target all get the same reward, so their advantage is 0."""

    def step(self, action: str):
        step = super().step(action)
        return step if self._target % 2 == 0 else replace(step, reward=0.0, won=False)


def _padded(sizes: list[tuple[int, int]]) -> int:
    return len(sizes) * (max(prompt for prompt, _ in sizes) + max(response for _, response in sizes))


@given(LENGTHS, st.integers(1, 400), st.integers(1, 60))
def test_runs_cover_all_rows_within_their_limits(sizes: list[tuple[int, int]], tokens: int, at_least: int) -> None:
    sizes = sorted(sizes, key=sum, reverse=True)
    cuts = cut_evenly(sizes, tokens, min(at_least, len(sizes)))
    assert [first for first, _ in cuts] == [0, *(last for _, last in cuts[:-1])] and cuts[-1][1] == len(sizes)
    assert len(cuts) >= min(at_least, len(sizes))
    for first, last in cuts:
        assert first < last
        assert last - first == 1 or _padded(sizes[first:last]) <= tokens


def test_runs_are_about_equally_large() -> None:
    assert cut_evenly([(10, 0)] * 9, 80) == [(0, 5), (5, 9)]


def _run(folder: Path, factory: type = FewWin, **options):
    trainer = make_trainer(folder, factory=factory, max_steps=2, optim="sgd", **options)
    counts, inner = Counter(), trainer._compute_loss

    def counted(model, inputs):
        counts["rows"] += len(inputs["advantages"])
        counts["tokens"] += int(inputs["prompt_mask"].numel() + inputs["completion_mask"].numel())
        return inner(model, inputs)

    trainer._compute_loss = counted
    trainer.train()
    return trainer, counts


def at_first(turn: Turn) -> str | None:
    return "it is a number" if turn.number == 0 else None


@pytest.mark.parametrize(
    "options", [{"method": "align_opsd"}, {"method": "grpo"}, {"method": "sdar", "parts": {"privileged": at_first}}]
)
@pytest.mark.full
def test_rows_that_nothing_teaches_leave_the_update_and_nothing_changes(tmp_path: Path, options: dict) -> None:
    whole, all_rows = _run(tmp_path / "whole", skip_zero_advantage=False, **options)
    short, live_rows = _run(tmp_path / "short", **options)
    nothing = torch.zeros(1, 1)
    taught = [(rows["advantages"] != 0) | (rows.get("target/taught", nothing) != 0) for rows in whole.seen_rows]
    live = sum(int(rows.any(1).sum()) for rows in taught)
    assert 0 < live < all_rows["rows"] and live_rows["rows"] == live
    assert losses(short) == pytest.approx(losses(whole), abs=1e-6)
    for left, right in zip(short.seen_gradients, whole.seen_gradients, strict=True):
        assert difference(left, right) < 1e-6
    assert difference(short.model.state_dict(), whole.model.state_dict()) < 1e-6


@pytest.mark.parametrize("options", mostly_full([{"beta": 0.02}, {"entropy_coef": 0.01}, {"method": "sdar"}]))
def test_rows_that_a_further_loss_reads_stay(tmp_path: Path, options: dict) -> None:
    trainer, counts = _run(tmp_path, **options)
    assert counts["rows"] == sum(len(rows["advantages"]) for rows in trainer.seen_rows)


def test_a_round_without_any_advantage_still_makes_a_step(tmp_path: Path) -> None:
    class NobodyWins(ToyEnvironment):
        def step(self, action: str):
            return replace(super().step(action), reward=0.0, won=False)

    trainer, counts = _run(tmp_path, factory=NobodyWins)
    assert counts["rows"] == 2 and losses(trainer) == [0.0, 0.0]
    assert not trainer.seen_gradients[0]


@pytest.mark.parametrize("skips", mostly_full([True, False]))
def test_a_step_that_teaches_nothing_leaves_the_weights_to_no_momentum(tmp_path: Path, skips: bool) -> None:
    class WonAtFirst(ToyEnvironment):
        def step(self, action: str):
            return replace(super().step(action), **({} if len(weights) == 0 else {"reward": 0.0, "won": False}))

    class Kept(TrainerCallback):
        def on_step_end(self, *given: Any, model: Any, **also: Any) -> None:
            weights.append({name: value.clone() for name, value in model.state_dict().items()})

    weights: list[dict[str, torch.Tensor]] = []
    trainer = make_trainer(tmp_path, factory=WonAtFirst, max_steps=3, learning_rate=0.1, skip_zero_advantage=skips)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.add_callback(Kept())
    trainer.train()
    assert difference(start, weights[0]) > 0.01
    assert difference(weights[0], weights[1]) == difference(weights[1], weights[2]) == 0.0


def test_a_step_is_as_long_as_the_share_of_its_tokens_that_teach(tmp_path: Path) -> None:
    moved, shares = [], []
    for scaled in (False, True):
        options: dict[str, Any] = {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "scale_steps": scaled}
        trainer = make_trainer(tmp_path / str(scaled), factory=FewWin, **options)
        start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        trainer.train()
        moved.append({name: value - start[name] for name, value in trainer.model.state_dict().items()})
        rows, tokens = trainer.seen_rows[0], trainer.seen_rows[0]["completion_mask"].sum(1)
        shares.append(float(tokens[rows["advantages"].any(1)].sum() / tokens.sum()))
        assert all(group["lr"] == pytest.approx(1e-3) for group in trainer.optimizer.param_groups)
    assert 0 < shares[0] == shares[1] < 1
    for name, whole in moved[0].items():
        assert torch.allclose(moved[1][name], shares[0] * whole, atol=1e-7)


def test_steps_of_deepspeeds_engine_are_not_scaled_in_silence(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, scale_steps=True)
    accelerator = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    with pytest.raises(ValueError, match="scale_steps=True would change nothing under DeepSpeed"):
        replace(trainer.update, accelerator=accelerator)


def test_a_residual_keeps_a_row(tmp_path: Path) -> None:
    trainer, counts = _run(tmp_path, invalid_action_penalty=0.1)
    expected = sum(int((rows["advantages"] != 0).any(1).sum()) for rows in trainer.seen_rows)
    assert counts["rows"] == expected > _run(tmp_path / "without")[1]["rows"]


@pytest.mark.parametrize("method", mostly_full(["align_opsd", "rlsd", "step_opsd", "agent_opsd"]))
def test_turns_without_advantage_are_not_scored_and_nothing_changes(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, inner = Counter(), PolicyScorer.shared

    def counted(self, rows, before=None):
        scored[self._trainer.args.skip_zero_advantage] += int((rows.labels != -100).sum())
        return inner(self, rows, before)

    monkeypatch.setattr(PolicyScorer, "shared", counted)
    runs = [_run(tmp_path / str(skip), method=method, skip_zero_advantage=skip)[0] for skip in (False, True)]
    assert 0 < scored[True] < 0.9 * scored[False]
    for left, right in zip(*(run.seen_rows for run in runs), strict=True):
        assert torch.allclose(left["advantages"], right["advantages"], atol=1e-6)
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), abs=1e-6)


def test_records_say_what_was_not_scored(tmp_path: Path) -> None:
    _run(tmp_path, method="align_opsd", save_trajectories=True)
    frame = read_records(tmp_path / "trajectories")
    still = frame.credit_advantage == 0
    assert still.any() and (~still).any()
    assert frame[still].credit_identity_gap.isna().all() and frame[~still].credit_identity_gap.notna().all()
    assert (frame[still].credit_weight == 1).all()


@pytest.mark.parametrize("options", [{"auxiliary_loss": "alignment"}, {"auxiliary_loss": "sdar"}])
def test_targets_of_a_loss_are_scored_everywhere(tmp_path: Path, options: dict) -> None:
    trainer, _ = _run(tmp_path, method="align_opsd", **options)
    mask = trainer.seen_rows[0]["tool_mask"].bool()
    assert (trainer.seen_rows[0]["target/teacher"][mask] != 0).all()


@pytest.mark.full
def test_sorted_rows_are_padded_less(tmp_path: Path) -> None:
    _, one = _run(tmp_path / "one", factory=ToyEnvironment, skip_zero_advantage=False, tokens_per_forward=10**6)
    _, many = _run(tmp_path / "many", factory=ToyEnvironment, skip_zero_advantage=False, tokens_per_forward=200)
    assert many["rows"] == one["rows"] and many["tokens"] < 0.9 * one["tokens"]

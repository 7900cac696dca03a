"""Two real processes against one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.toy import build_model, build_tokenizer, toy_dataset
from fakes.trainers import difference, hand_loss, losses, make_trainer, trained
from launching import TESTS, run_script
from two_processes import AS_ONE, OPTIONS, QUICK, RUNS

from alignopsd_trl.records import read_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `QUICK` left."""
    target = tmp_path_factory.mktemp("two")
    run_script(TESTS / "two_processes.py", target, *QUICK, processes=2)
    return target


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the other runs left."""
    target = tmp_path_factory.mktemp("more")
    run_script(TESTS / "two_processes.py", target, *(name for name in RUNS if name not in QUICK), processes=2)
    return target


def _load(folder: Path, name: str) -> list[dict]:
    return [torch.load(folder / f"{name}_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.full
def test_loss_and_gradient_are_the_global_token_mean(folder: Path) -> None:
    ranks = _load(folder, "still")
    rows = [part for rank in ranks for part in rank["rows"]]
    real = [int((part["tool_mask"].sum(1) > 0).sum()) for part in rows]
    assert real[0] != real[1] and len(rows[0]["advantages"]) == len(rows[1]["advantages"])
    expected, gradient = hand_loss(build_model(build_tokenizer()), rows)
    for rank in ranks:
        assert rank["loss"][0] == pytest.approx(expected, abs=1e-6)
        assert difference(rank["gradients"][0], gradient) < 1e-5


@pytest.mark.parametrize("name", mostly_full(AS_ONE))
def test_two_processes_train_as_one(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    folder = request.getfixturevalue("folder" if name in QUICK else "more")
    ranks = _load(folder, name)
    single = trained(tmp_path, per_device_train_batch_size=16, **OPTIONS | AS_ONE[name])
    assert ranks[0]["loss"] == pytest.approx(losses(single), abs=1e-6)
    assert difference(ranks[0]["weights"], single.model.state_dict()) < 1e-6
    keys = ["step", "task", "rollout", "turn"]
    one = read_records(tmp_path / "trajectories").set_index(keys).sort_index()
    both = [read_records(folder / name / f"rank{rank}" / "trajectories").set_index(keys) for rank in range(2)]
    two = pd.concat(both).sort_index()
    assert one.index.equals(two.index) and one.index.is_unique
    assert one.response.tolist() == two.response.tolist()
    for column in ("credit_advantage", "credit_weight"):
        assert one[column].to_numpy() == pytest.approx(two[column].to_numpy(), abs=1e-5)


@pytest.mark.full
def test_skips_change_nothing_over_processes(more: Path) -> None:
    """Process by process other rows are live, and the sub-chunks are as many on both."""
    for short, whole in zip(_load(more, "skipping"), _load(more, "whole"), strict=True):
        assert short["loss"] == pytest.approx(whole["loss"], abs=1e-6)
        assert difference(short["gradients"][0], whole["gradients"][0]) < 1e-6
        assert short["forwards"]["loss"] <= whole["forwards"]["loss"]


def test_a_group_without_an_advantage_is_not_thought_about(folder: Path) -> None:
    """It is on one process only; `test_every_process_makes_the_same_calls` counts these calls too."""
    turns = pd.concat([read_records(folder / "uneven" / f"rank{rank}" / "trajectories") for rank in range(2)])
    still = turns.groupby("task").reward.transform("nunique") == 1
    assert still.any() and turns[still].credit_teacher_thinking.isna().all()
    assert turns[~still].credit_teacher_thinking.notna().all()


@pytest.mark.parametrize("name", mostly_full(["equal", "uneven", "still", "skipping"], quick=3))
def test_every_process_makes_the_same_calls(request: pytest.FixtureRequest, name: str) -> None:
    first, second = _load(request.getfixturevalue("folder" if name in QUICK else "more"), name)
    assert first["generations"] == second["generations"]
    assert first["forwards"] == second["forwards"]
    assert first["forwards"].get("loss", 0) > 0


def test_a_process_without_live_episodes_waits_for_the_other(folder: Path) -> None:
    first, second = _load(folder, "uneven")
    rows = [rank["rows"][0] for rank in (first, second)]
    played = [int((part["tool_mask"].sum(1) > 0).sum()) for part in rows]
    assert played[1] == 8 < played[0]
    assert first["loss"] == second["loss"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["walking", "uneven walking"])
def test_two_processes_walk_equally_often_whatever_either_has_to_walk(more: Path, name: str) -> None:
    first, second = _load(more, name)
    assert len(first["generations"]) > 6 and first["generations"] == second["generations"]
    assert first["loss"] == second["loss"] and difference(first["weights"], second["weights"]) == 0.0


@pytest.mark.full
def test_two_processes_evaluate_as_one(more: Path, tmp_path: Path) -> None:
    alone = make_trainer(tmp_path, parts={"eval_dataset": toy_dataset(5)}).evaluate()
    for both in _load(more, "evaluated"):
        assert both.keys() == alone.keys() and both["eval_episodes/turns"] > 1
        for name in {name for name in alone if "second" not in name and "runtime" not in name}:
            assert both[name] == pytest.approx(alone[name]), name

"""What ends a run, and with which words: rewards, failed episodes, numbers that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.toy import ToyEnvironment
from fakes.trainers import make_trainer

from alignopsd_trl.environments.base import Step
from alignopsd_trl.runs.health import FailedShare, RunStopped, Tally, weights_are_finite
from alignopsd_trl.runs.state import whole_checkpoints
from alignopsd_trl.training.rewards import RewardCheck, RewardError
from alignopsd_trl.turns import StopReason, Trajectory


def _episodes(*failed: bool) -> list[Trajectory]:
    reasons = {True: StopReason.ENVIRONMENT_ERROR, False: StopReason.DONE}
    return [Trajectory({}, f"toy/{place}", "0000", stop=reasons[one]) for place, one in enumerate(failed)]


def _checked(answer: Any, episodes: list[Trajectory]) -> tuple[list[float | None], str | None, dict[str, int]]:
    def length_bonus(**given: Any) -> Any:
        return answer(**given) if callable(answer) else answer

    check = RewardCheck()
    rewards = check.wrap(length_bonus)(trajectory=episodes, prompts=["p"] * len(episodes))
    return rewards, *check.take()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "0.5", [0.5], object()])
def test_a_reward_that_is_no_finite_number_names_function_row_and_value(value: Any) -> None:
    _, problem, _ = _checked([0.0, value], _episodes(False, False))
    assert "reward function 'length_bonus'" in problem and "row 1, task 'toy/1'" in problem
    assert repr(value)[:20] in problem and "return a finite number" in problem


@pytest.mark.parametrize("answer", [[0.0], [0.0] * 3, 0.0, None, "ab", torch.zeros(2, 1)])
def test_a_wrong_number_of_rewards_is_named(answer: Any) -> None:
    _, problem, _ = _checked(answer, _episodes(False, False))
    assert "length_bonus" in problem and "for 2 episodes; return a list with one finite number" in problem


@pytest.mark.parametrize("answer", [[1, True], (0.5, np.float32(0.25)), torch.tensor([1.0, 2.0]), np.array([1, 2])])
def test_numbers_of_all_kinds_are_rewards(answer: Any) -> None:
    rewards, problem, silent = _checked(answer, _episodes(False, False))
    assert problem is None and not silent and rewards == [float(value) for value in answer]


def test_none_says_nothing_and_is_counted() -> None:
    rewards, problem, silent = _checked([None, 1.0], _episodes(False, False))
    assert rewards == [None, 1.0] and problem is None and silent == {"length_bonus": 1}


def test_failed_episodes_are_not_shown_to_a_reward_function() -> None:
    def seen(trajectory: list[Trajectory], prompts: list[str], **more: Any) -> list[float]:
        assert [one.task for one in trajectory] == ["toy/1"] and len(prompts) == 1
        return [2.0]

    rewards, problem, _ = _checked(seen, _episodes(True, False, True))
    assert rewards == [0.0, 2.0, 0.0] and problem is None


def test_a_share_of_failed_episodes_over_three_rounds_ends_the_run() -> None:
    share = FailedShare(0.5)
    assert share.problem(Tally(8, 7, 1, "down")) is None and share.problem(Tally(8, 4, 4, "down")) is None
    assert "13 of the 24 episodes" in share.problem(Tally(8, 2, 6, "down"))
    assert share.problem(Tally(8, 1, 7)) is None, "the first round is out of sight"
    assert "The first reason: down" in FailedShare(1.0).problem(Tally(8, 8, 0, "down"))


def test_weights_with_one_bad_number_are_not_finite() -> None:
    model = torch.nn.Linear(3, 2)
    assert weights_are_finite(model)
    with torch.no_grad():
        model.weight[1, 2] = math.inf
    assert not weights_are_finite(model)


class Burnt(ToyEnvironment):
    def step(self, action: str) -> Step:
        raise RuntimeError("the shop burnt down")


def test_an_environment_that_always_raises_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(tmp_path, factory=Burnt)
    with pytest.raises(RunStopped, match=r"update 1: no episode .* the shop burnt down.*; the last good checkpoint is"):
        trainer.train()
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["checkpoint-0"]
    assert len(capfd.readouterr().out + capfd.readouterr().err) < 5000, "no dump of trajectories"


def test_an_infinite_reward_ends_the_run_and_saves_nothing(tmp_path: Path) -> None:
    def bonus(trajectory: list[Trajectory], **more: Any) -> list[float]:
        return [math.inf] + [0.0] * (len(trajectory) - 1)

    trainer = make_trainer(tmp_path, parts={"reward_funcs": bonus}, save_strategy="steps", save_steps=1)
    with pytest.raises(RewardError, match="update 1: reward function 'bonus' returned inf"):
        trainer.train()
    assert not whole_checkpoints(tmp_path)


def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
    inner = trainer._compute_loss

    def loss(*given: Any) -> torch.Tensor:
        return inner(*given) * (math.nan if trainer.state.global_step == 1 else 1.0)

    trainer._compute_loss = loss
    with pytest.raises(RunStopped, match="update 2: the loss or its gradient is not finite.*checkpoint-1"):
        trainer.train()
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["checkpoint-1"]
    assert weights_are_finite(trainer.model)

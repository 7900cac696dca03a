"""A round that is used for several optimiser steps: in mini-batches, and more than once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sweeps import mostly_full
from fakes.trainers import losses, trained

from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.methods import get_method, method_names
from alignopsd_trl.training.console import Lines, line
from alignopsd_trl.training.loss import drift_numbers, drift_sums

STEPS = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_iterations": 2, "max_steps": 8}
"""Two mini-batches of a round, passed twice: four steps."""
KINDS = {name: get_method(name) for name in method_names()}
TRAINED = [name for name, kind in KINDS.items() if kind.trains and kind.__module__.startswith("alignopsd_trl.")]


def logged(trainer: Any, number: int) -> dict[str, float]:
    """What the n-th optimiser step says of its drift."""
    prefix = f"drift/step_{(number - 1) % 4 + 1}/"
    log = trainer.state.log_history[number - 1]
    found = {name.removeprefix(prefix): value for name, value in log.items() if name.startswith("drift/")}
    assert not any(name.startswith("drift/") for name in found), "a step told of another"
    return found


@pytest.mark.parametrize("name", mostly_full(["align_opsd", *(one for one in TRAINED if one != "align_opsd")]))
def test_every_method_takes_several_steps_a_round(name: str, tmp_path: Path) -> None:
    trainer = trained(tmp_path, method=name, optim="sgd", learning_rate=0.3, **STEPS)
    assert len(trainer.seen_rows) == 2 and len(trainer.seen_gradients) == 8
    assert torch.tensor(losses(trainer)).isfinite().all()
    learns = name != "monte_carlo"  # whose walks from a state of the scripted game all end alike
    assert learns == any(float(value.abs().max()) > 0 for value in trainer.seen_gradients[3].values())
    for number in (1, 5) if learns else ():  # the policy that sampled
        first = logged(trainer, number)
        assert first["kl"] == pytest.approx(0.0, abs=1e-6) and first["ess"] == pytest.approx(1.0, abs=1e-5)
        assert first["ratio"] == pytest.approx(1.0, abs=1e-5) and first["outside_clip"] == 0.0
        later = logged(trainer, number + 3)
        assert later["kl"] > 1e-7 and 0.0 < later["ess"] < 1.0


def test_a_round_of_one_step_says_nothing_of_drift(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    assert not any(name.startswith("drift/") for log in trainer.state.log_history for name in log)


def test_numbers_of_drift_by_hand() -> None:
    ratio = torch.tensor([0.5, 1.0, 1.5, 3.0])
    difference, mask = torch.stack([ratio.log(), torch.full((4,), 9.0)]), torch.tensor([[True] * 4, [False] * 4])
    found = drift_numbers(drift_sums(difference, mask, 0.2, 0.6))
    assert found == pytest.approx(
        {
            "ratio": 1.5,
            "outside_clip": 0.5,
            "kl": float((ratio - 1 - ratio.log()).mean()),
            "ess": 36 / (4 * 12.5),
        }
    )
    assert drift_numbers(drift_sums(difference, ~mask & mask, 0.2, 0.2)) == {}


def test_a_step_far_from_its_sampler_is_said_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    state = SimpleNamespace(is_world_process_zero=True, global_step=3, max_steps=8, log_history=[])
    lines, args = (
        Lines(),
        SimpleNamespace(generation_batch_size=8, logging_steps=1, num_generations=4, steps_per_round=8),
    )
    for ess in (0.9, 0.31):
        lines.on_log(args, state, None, logs={"loss": 0.1, "drift/step_3/ess": ess})
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "      3/8  far from its sampler at step 3 of the round: 31% effective samples"
    assert sum("far from" in one for one in printed) == 1
    logs = {"episodes/success": 0.5, "drift/step_1/ess": 1.0, "drift/step_2/ess": 0.4, "drift/step_3/ess": 0.2}
    assert "far from its sampler at step 3 of the round: 20% effective samples" in line(
        "4/8", logs, [Interval(0.5)], 8, 200
    )

"""Training, evaluation, fidelity and the method's core on a device whose tensors refuse those of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import method_vectors
import pytest
import torch
import vector_runners
from fakes.toy import toy_dataset
from fakes.trainers import make_trainer
from second_device import MixedDevices, move_trainer, moved, second_device

from alignopsd_trl.commands.measure.training import FidelityCallback
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.methods import get_method, method_names

PANEL = TaskPanel.of("toy", "test", list(toy_dataset(12)))
TIMES = ("time", "seconds", "runtime", "per_second", "share", "/s")


def _log(folder: Path, there: bool, **options: Any) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    options = {"optim": "adamw_torch", "seed": 3, "script": False, **options}
    trainer = make_trainer(folder, **options)
    if not there:
        trainer.train()
        return trainer.state.log_history
    with second_device() as device:
        move_trainer(trainer)
        trainer.train()
    assert device.operations > 1000
    return trainer.state.log_history


def _check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for one, other in zip(found, expected, strict=True):
        numbers = {name for name, value in other.items() if isinstance(value, float)}
        for name in {name for name in numbers if not any(word in name for word in TIMES)}:
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), name


TRAINED = [name for name in method_names() if get_method(name).trains]


TALK = {"method": "align_opsd", "history": "conversation", "max_prompt_length": 400}
MEASURED = {"method": "align_opsd", "parts": {"callbacks": [FidelityCallback(1, rollouts=2)]}}


@pytest.mark.slow
@pytest.mark.parametrize("options", [*({"method": one, "beta": 0.01} for one in TRAINED), TALK, MEASURED])
def test_an_update_is_that_of_the_first_device(options: dict[str, Any], tmp_path: Path) -> None:
    found, expected = (_log(tmp_path / str(there), there, **options) for there in (True, False))
    _check(found, expected)


@pytest.mark.slow
def test_a_panel_is_played_alike(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, script=False, method="align_opsd")
    expected = trainer.evaluate_panel(PANEL, temperature=0.01)
    with second_device():
        move_trainer(trainer)
        found = trainer.evaluate_panel(PANEL, temperature=0.01)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "case"), method_vectors.cases())
def test_golden_vectors(kind: str, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("real", "flag", "identity_columns", "padded"):
        monkeypatch.setattr(vector_runners, name, _there(getattr(method_vectors, name)))
    with second_device():
        computed = vector_runners.RUNNERS[kind](case["inputs"], case.get("params", {}))
        method_vectors.compare(computed, case["expected"], kind)


def _there(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def moves(*arguments: Any) -> Any:
        found = read(*arguments)
        return tuple(map(moved, found)) if isinstance(found, tuple) else moved(found)

    return moves


def test_mixing_that_is_planted_in_training_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path)
    inner = trainer.row_maker.rows

    def planted(*arguments: Any) -> dict[str, torch.Tensor]:
        rows = inner(*arguments)
        return rows | {"advantages": rows["advantages"] * torch.ones(rows["advantages"].shape)}

    monkeypatch.setattr(trainer.row_maker, "rows", planted)
    with second_device():
        move_trainer(trainer)
        with pytest.raises(MixedDevices, match="aten.mul"):
            trainer.train()


@pytest.mark.slow
def test_the_host_waits_rarely_in_a_round(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, script=False, method="align_opsd", optim="adamw_torch", seed=3)
    steps, batches = [], []
    with second_device() as device:
        move_trainer(trainer)
        trainer.model.register_forward_pre_hook(
            lambda model, args, options: steps.append(options["input_ids"].size(1) == 1), with_kwargs=True
        )
        encode = trainer.encoder._encode
        trainer.encoder._encode = lambda texts: batches.append(1) or encode(texts)
        trainer.train()

    def waits(file: str) -> int:
        return sum(count for place, count in device.waits.items() if f"at {file}" in place)

    generations = sum(count for place, count in device.waits.items() if "kept.tolist" in place)
    assert 0 < waits("sampling/loop.py") - generations <= sum(steps), "one for each sampled token"
    assert waits("runs/health.py") == 1, "not one for each parameter"
    assert waits("encoder.py") == len(batches) > 0
    for file in ("teacher_forcing", "packing", "prefix_cache", "ragged"):
        assert waits(f"scoring/{file}.py") == 0
    assert waits("training/turn_rows.py") <= 2, "for a micro-batch and its only sub-chunk"

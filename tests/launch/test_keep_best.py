"""A run that ends with the weights of its best round on held-out tasks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import pvariance
from typing import Any

import pytest
import torch
from fakes.toy import ToyEnvironment, toy_dataset
from fakes.trainers import make_trainer
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.commands.launch.keep_best import KeepBest
from alignopsd_trl.config import BEST, VARIANCE
from alignopsd_trl.environments import Step, TaskPanel
from alignopsd_trl.runs.files import BEST_FILE
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.runs.state import RunFolderError


def _weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in trainer.model.named_parameters()}


def _trained(folder: Path, found: Any, monkeypatch: Any, resume: bool = False, **options: Any) -> tuple[Any, list[Any]]:
    """A trainer that has trained with 16 held-out tasks, whose metrics are those that are ``found``, one after another;
    and the weights that they are of."""
    trainer, told, seen = make_trainer(folder, **options), iter(found), list[Any]()

    def metrics(*given: Any) -> dict[str, float]:
        seen.append(_weights(trainer))
        return next(told)

    monkeypatch.setattr(trainer.panels, "metrics", metrics)
    trainer.add_callback(KeepBest(trainer, [{"task_id": f"held/{number}"} for number in range(16)]))
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


def _equal(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return all(one.equal(others[name]) for name, one in some.items())


CHANCE, MORE = (0.5, 0.65, 0.67), (0.5, 0.65, 0.68)  # of 16 tasks; one standard error is 0.171 above 0.5


@pytest.mark.parametrize(
    "won, kept",
    [((0.9, 0.1, 0.2), 0), ((0.1, 0.5, 0.2), 1), ((0.1, 0.5, 0.5), 2), (CHANCE, 0), (MORE, 2)],
)
def test_the_best_weights_stay(
    won: tuple[float, ...], kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    trainer, seen = _trained(tmp_path, [{"success_or_score": one} for one in won], monkeypatch, max_steps=2)
    assert len(seen) == 3 and not _equal(seen[2], seen[0])
    assert _equal(_weights(trainer), seen[kept])
    assert _equal(load_file(Path(trainer.args.output_dir) / BEST_FILE), seen[kept])
    assert re.search(rf"the weights of update {kept} stay: {100 * won[kept]:.1f} ", capsys.readouterr().out)


def test_a_resumed_run_still_has_the_best_weights(tmp_path: Path, monkeypatch: Any) -> None:
    seen = []
    for updates, won in ((1, (0.1, 0.9)), (2, (0.2,))):
        found = [{"success_or_score": one} for one in won]
        options = {"max_steps": updates, "save_strategy": "steps", "save_steps": 1}
        trainer, _ = _trained(tmp_path, found, monkeypatch, resume=updates > 1, **options)
        seen.append(_weights(trainer))
    assert trainer.state.global_step == 2 and _equal(seen[1], seen[0])


def test_held_out_tasks_are_not_trained_on(tmp_path: Path) -> None:
    argv = ["--output_dir", str(tmp_path), "--held_out", "3"]
    job = Job.of(*parse("webshop_tiny", argv))
    names = {row["task_id"] for row in job.held_out}
    assert len(names) == 3 and not names & set(job.tasks["task_id"])
    with pytest.raises(ValueError, match="held_out=100000 leaves none"):
        _ = Job.of(*parse("webshop_tiny", [*argv[:2], "--held_out", "100000"])).tasks


SCORES = ((-5.0, 4.0), (-4.4, 4.0), (-3.0, 4.0))  # mean and variance of 16 tasks; one standard error is 0.71 above -5


@pytest.mark.parametrize(
    ("found", "kept"), [(SCORES, 2), (SCORES[:2] * 2, 0), (((1.5, 0.0), (2.5, 0.0), (2.5, 9.0)), 2)]
)
def test_scores_are_compared_as_they_are_where_success_is_unknown(
    found: Any, kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    told = [{BEST: mean, VARIANCE: variance, "episodes/score": mean} for mean, variance in found]
    trainer, seen = _trained(tmp_path, told, monkeypatch, max_steps=2)
    said = capsys.readouterr().out
    assert f"held out: a mean score of {found[1][0]:g} after 1 updates, success unknown" in said
    assert f"the weights of update {kept} stay: a mean score of {found[kept][0]:g} of 16 held-out tasks" in said
    assert _equal(_weights(trainer), seen[kept])


class Unsure(ToyEnvironment):
    """Knows no success, and scores below -1."""

    def step(self, action: str) -> Step:
        step = super().step(action)
        return replace(step, won=None, score=step.score - 3.0)


def test_the_variance_of_a_score_is_that_of_the_episodes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, Unsure)
    rows = [dict(row) for row in toy_dataset(8)]
    found = trainer.panels.metrics(rows, "held out", False, 1.0, True)
    panel = TaskPanel.of("toy", "held out", rows)
    scores = [one.score for one in trainer.evaluate_panel(panel, temperature=1.0).outcomes]
    assert found[BEST] == pytest.approx(sum(scores) / 8) and found[BEST] < -1 and "episodes/success" not in found
    assert found[VARIANCE] == pytest.approx(pvariance(scores)) and len(set(scores)) > 1


def test_nothing_known_ends_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(RunStopped, match="neither success nor score of its tasks is known; leave it out"):
        _trained(tmp_path, [{}], monkeypatch, max_steps=1)


@pytest.mark.full
def test_a_resumed_run_does_not_go_on_without_the_best_weights(tmp_path: Path, monkeypatch: Any) -> None:
    def session(updates: int, won: tuple[float, ...], resume: bool = False) -> Any:
        options = {"max_steps": updates, "save_strategy": "steps", "save_steps": 1}
        return _trained(tmp_path, [{BEST: one} for one in won], monkeypatch, resume, **options)[0]

    session(1, (1.0, 0.5))
    file = tmp_path / BEST_FILE
    whole = file.read_bytes()
    with safe_open(file, "pt") as kept:
        weights, told = {name: kept.get_tensor(name) for name in kept.keys()}, kept.metadata()
    bare = {name: one for name, one in told.items() if name == "won"}

    def fails(what: str) -> None:
        with pytest.raises(RunFolderError, match=f"{BEST_FILE} {what}.*; bring it back, or overwrite_output_dir"):
            session(2, (0.75,), resume=True)

    file.unlink()
    fails("is gone, which held the best weights")
    file.write_bytes(whole[:-9])
    fails("is cut short or damaged")
    for spoilt, about, what in (
        (weights, bare, "is cut short or damaged"),
        (weights, {name: one for name, one in told.items() if name != "run"}, "is cut short or damaged"),
        (weights, told | {"run": "another"}, "is of another run"),
        ({"x": torch.ones(1)}, told, "is of another run"),
    ):
        save_file(spoilt, file, about)
        fails(what)
    file.write_bytes(whole)
    assert _equal(_weights(session(2, (0.75,), resume=True)), weights), "those of update 0 won all"

"""A run that ends with the weights of its best round on held-out tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trainers import make_trainer
from safetensors.torch import load_file

from alignopsd_trl.launch.arguments import parse
from alignopsd_trl.launch.job import Job
from alignopsd_trl.launch.keep_best import KeepBest
from alignopsd_trl.runs.folder import BEST_FILE


def _weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in trainer.model.named_parameters()}


CHANCE, MORE = (0.5, 0.65, 0.67), (0.5, 0.65, 0.68)  # of 16 tasks; one standard error is 0.171 above 0.5


@pytest.mark.parametrize(
    "won, kept",
    [((0.9, 0.1, 0.2), 0), ((0.1, 0.5, 0.2), 1), ((0.1, 0.5, 0.5), 2), (CHANCE, 0), (MORE, 2), ((-1, 1, 0), 1)],
)
def test_the_best_weights_stay(
    won: tuple[float, ...], kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    seen, told = [], iter(won)

    def metrics(*given: Any) -> dict[str, float]:
        seen.append(_weights(trainer))
        return {"success_or_score": next(told)}

    monkeypatch.setattr(trainer.panels, "metrics", metrics)
    trainer.add_callback(KeepBest(trainer, [{"task_id": f"held/{number}"} for number in range(16)]))
    trainer.train()
    assert len(seen) == 3 and any(not one.equal(seen[0][name]) for name, one in seen[2].items())
    assert all(one.equal(seen[kept][name]) for name, one in _weights(trainer).items())
    assert all(
        one.equal(seen[kept][name]) for name, one in load_file(Path(trainer.args.output_dir) / BEST_FILE).items()
    )
    assert re.search(rf"the weights of update {kept} stay: {100 * won[kept]:.1f} ", capsys.readouterr().out)


def test_a_resumed_run_still_has_the_best_weights(tmp_path: Path, monkeypatch: Any) -> None:
    seen = []
    for updates, won in ((1, (0.1, 0.9)), (2, (0.2,))):
        trainer, told = make_trainer(tmp_path, max_steps=updates, save_strategy="steps", save_steps=1), iter(won)
        monkeypatch.setattr(trainer.panels, "metrics", lambda *_, told=told: {"success_or_score": next(told)})
        trainer.add_callback(KeepBest(trainer, [{"task_id": "held/0"}]))
        trainer.train(resume_from_checkpoint=updates > 1)
        seen.append(_weights(trainer))
    assert trainer.state.global_step == 2 and all(one.equal(seen[0][name]) for name, one in seen[1].items())


def test_held_out_tasks_are_not_trained_on(tmp_path: Path) -> None:
    argv = ["--output_dir", str(tmp_path), "--held_out", "3"]
    job = Job.of(*parse("webshop_tiny", argv))
    names = {row["task_id"] for row in job.held_out}
    assert len(names) == 3 and not names & set(job.tasks["task_id"])
    with pytest.raises(ValueError, match="held_out=100000 leaves none"):
        _ = Job.of(*parse("webshop_tiny", [*argv[:2], "--held_out", "100000"])).tasks

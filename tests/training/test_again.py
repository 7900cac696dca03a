"""A cell that trains is run again: the same trainer, a new one, another setting, one that was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.toy_suite import save_policy
from fakes.trainers import make_trainer, trained
from transformers import TrainerCallback

from alignopsd_trl.runs.state import RunFolderError


class Interrupted(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            raise KeyboardInterrupt


def test_what_was_trained_before_is_kept_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, policy = tmp_path / "run", tmp_path / "policy"
    first = trained(folder, policy=save_policy(policy), save_trajectories=True)
    first.save_model()
    first.train()
    trained(folder, policy=policy, learning_rate=2e-2)
    assert capsys.readouterr().out.count("held a finished run") == 2
    runs = [
        json.loads((place / "run.json").read_text())["id"] for place in (folder, tmp_path / "run.1", tmp_path / "run.2")
    ]
    assert len(set(runs)) == 3
    model, settings = (tmp_path / "run.1" / name for name in ("model.safetensors", "config.json"))
    assert model.stat().st_mode == settings.stat().st_mode and not (folder / "model.safetensors").exists()
    assert all(len(list(tmp_path.glob(f"{name}/trajectories/*"))) == 1 for name in ("run.1", "run.2"))


def test_an_interrupted_run_goes_on_or_is_replaced_by_an_argument(tmp_path: Path) -> None:
    folder, policy = tmp_path / "run", save_policy(tmp_path / "policy")
    settings = {"policy": policy, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(folder, parts={"callbacks": [Interrupted()]}, **settings).train()
    with pytest.raises(RunFolderError) as refused:
        make_trainer(folder, **settings).train()
    said = str(refused.value)
    assert "stopped after checkpoint-1" in said and "--" not in said
    assert "resume_from_checkpoint=True goes on" in said and "overwrite_output_dir=True removes it" in said
    trainer = make_trainer(folder, **settings)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2

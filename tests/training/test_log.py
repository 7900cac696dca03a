"""The log of a run: whose seconds stand on a line, and what a resumed run finds of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.trainers import make_trainer, trained

pytestmark = pytest.mark.full


def _log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_seconds_stand_on_the_line_of_their_own_round(tmp_path: Path) -> None:
    trainer = trained(tmp_path, max_steps=2)
    first, second = _log(tmp_path)
    assert first["seconds/update"] > 0 and "episodes/success" in first
    for phase, total in trainer.phases.total.items():
        logged = [line.get(f"seconds/{phase}", 0.0) for line in (first, second)]
        assert sum(logged) == pytest.approx(total), "nothing is left for a round that never comes"


@pytest.mark.parametrize("left", [0, 300])
def test_a_torn_log_is_written_anew_and_said_so(tmp_path: Path, capsys: pytest.CaptureFixture, left: int) -> None:
    make_trainer(tmp_path, max_steps=2, save_steps=1, save_strategy="steps").train()
    whole, log = _log(tmp_path), tmp_path / "log.jsonl"
    log.write_bytes(log.read_bytes()[:left])
    capsys.readouterr()
    make_trainer(tmp_path, max_steps=3, save_steps=1, save_strategy="steps").train(resume_from_checkpoint=True)
    assert _log(tmp_path)[:2] == whole and [line["step"] for line in _log(tmp_path)] == [1, 2, 3]
    assert "log.jsonl was cut short: 2 of 2 lines up to update 2 were gone" in capsys.readouterr().out

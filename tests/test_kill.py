"""A run that is killed leaves its last checkpoint whole and continues with the same losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainers import losses, make_trainer

from alignopsd_trl.policy.checkpoints import last_whole_checkpoint

HERE = Path(__file__).parent


def _start(folder: Path, resume: str) -> subprocess.Popen:
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    command = [sys.executable, str(HERE / "killable.py"), str(folder), resume]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_killed_training_resumes_with_the_same_losses(tmp_path: Path, signal_number: int) -> None:
    process = _start(tmp_path, "new")
    deadline = time.monotonic() + 200
    while not (tmp_path / "checkpoint-3").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal_number)
    process.wait(timeout=60)
    assert not (tmp_path / "losses.json").exists()
    assert int(last_whole_checkpoint(tmp_path).name.rpartition("-")[2]) >= 2

    assert _start(tmp_path, "resume").wait(timeout=200) == 0
    resumed = json.loads((tmp_path / "losses.json").read_text())
    whole = make_trainer(tmp_path / "whole", method="align_opsd", max_steps=8)
    whole.train()
    assert resumed[-4:] == losses(whole)[-4:] and len(resumed) == 8

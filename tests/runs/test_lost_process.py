"""A process that hangs leaves the others waiting for the process group's time-out at most (one that dies: see
`test_lost_launch.py`). Also the script that both processes run. On GPUs transformers makes `ddp_timeout` that; on CPU
it passes none, and the script does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes.toy import build_model, build_tokenizer

pytestmark = pytest.mark.full

TIMEOUT = 15


def test_the_other_process_ends(tmp_path: Path) -> None:
    build_model(build_tokenizer()).save_pretrained(tmp_path / "policy")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parents[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, __file__, str(tmp_path)]
    processes = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=-1)
        for rank in range(2)
    ]
    try:
        _, errors = processes[0].communicate(timeout=300)
        ended = time.time()
    finally:
        for process in processes:
            process.kill()
        processes[1].communicate()
    waited = ended - float((tmp_path / "lost").read_text())
    assert processes[0].returncode != 0 and b"imed out" in errors, errors[-2000:]
    assert waited < TIMEOUT + 60  # a slow machine takes its time to end a process


def hang(folder: Path) -> None:
    from accelerate import PartialState
    from fakes.trainers import make_trainer

    PartialState(cpu=True, backend="gloo", timeout=timedelta(seconds=TIMEOUT))
    trainer = make_trainer(folder, policy=folder / "policy", max_steps=3)
    assert trainer.accelerator.num_processes == 2
    inner = trainer.rollouts.play_groups

    def play(asked: Any) -> object:
        if asked.update == 1 and os.environ["RANK"] == "1":
            (folder / "lost").write_text(str(time.time()))
            time.sleep(1000)
        return inner(asked)

    trainer.rollouts.play_groups = play
    trainer.train()


if __name__ == "__main__":
    hang(Path(sys.argv[1]))

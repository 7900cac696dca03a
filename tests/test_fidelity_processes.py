"""Walks on two real processes: equally many calls, whatever either has to walk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.full


def test_two_processes_walk_together(tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--standalone"]
    done = subprocess.run(
        [sys.executable, *command, str(here / "walking_processes.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("walking", "uneven"):
        ranks = [torch.load(tmp_path / f"{name}_{rank}.pt", weights_only=False) for rank in range(2)]
        calls = [rank["generations"] for rank in ranks]
        assert len(calls[0]) > 6 and calls[0] == calls[1]
        assert ranks[0]["loss"] == ranks[1]["loss"]
        weights = [torch.cat([value.flatten() for value in rank["weights"].values()]) for rank in ranks]
        assert torch.equal(*weights)

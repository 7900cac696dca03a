"""`benchmarks/continuous_play.py` from outside: half the decoding steps, and a server's wall time near its bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "continuous_play.py"


def test_half_the_steps_and_half_the_wall_time(tmp_path: Path) -> None:
    output = tmp_path / "play.json"
    sizes = ["--seeds", "1", "--server_turns", "8", "--token_seconds", "0.002"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--output", str(output), *sizes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(output.read_text())
    assert found["step_ratio"] >= 1.8 and found["wall_ratio"] >= 1.5 and found["over_bound"] <= 1.5
    assert found["overhead_microseconds_a_turn"] < 50
    for case in found["model"]:
        (one,) = case["rounds"]
        assert one["continuous"]["live_share"] >= 0.99 * one["lockstep"]["live_share"] or case["shape"]["latency"]

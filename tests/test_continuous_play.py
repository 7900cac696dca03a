"""`benchmarks/continuous_play.py` from outside: half the decoding steps, and a server's wall time near its bound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import TESTS, run_script

pytestmark = pytest.mark.full

SCRIPT = TESTS.parent / "benchmarks" / "continuous_play.py"


def test_half_the_steps_and_half_the_wall_time(tmp_path: Path) -> None:
    output = tmp_path / "play.json"
    sizes = ["--seeds", "1", "--server_turns", "8", "--token_seconds", "0.002"]
    run_script(SCRIPT, "--output", output, *sizes)
    found = json.loads(output.read_text())
    assert found["step_ratio"] >= 1.8 and found["wall_ratio"] >= 1.5 and found["over_bound"] <= 1.5
    assert found["overhead_microseconds_a_turn"] < 50
    for case in found["model"]:
        (one,) = case["rounds"]
        assert one["continuous"]["live_share"] >= 0.99 * one["lockstep"]["live_share"] or case["shape"]["latency"]

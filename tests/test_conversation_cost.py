"""`benchmarks/conversation_cost.py` from outside: a tenth of the tokens where dialogues are long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "conversation_cost.py"


def test_fifty_turns_with_all_their_history_cost_a_tenth(tmp_path: Path) -> None:
    output = tmp_path / "cost.json"
    parts = {"siblings": 2, "template": 60, "observation": 29, "response": 16, "action": 1, "skill": 30}
    sizes = [text for name, value in parts.items() for text in (f"--{name}", str(value))]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--output", str(output), *sizes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    tokens = json.loads(output.read_text())["tokens"]
    for phase in ("update", "scoring"):
        assert tokens["rows"][phase]["padded"] > 10 * tokens["conversation"][phase]["padded"]
        assert tokens["alone"][phase]["useful"] > 10 * tokens["conversation"][phase]["useful"]
    assert tokens["conversation"]["update"]["rows"] == 2 and tokens["rows"]["update"]["rows"] == 100
    assert "2 episodes of 50 turns" in done.stdout

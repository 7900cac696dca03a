"""`benchmarks/conversation_cost.py` from outside: a tenth of the tokens where dialogues are long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import TESTS, run_script

pytestmark = pytest.mark.full

SCRIPT = TESTS.parent / "benchmarks" / "conversation_cost.py"


def test_fifty_turns_with_all_their_history_cost_a_tenth(tmp_path: Path) -> None:
    output = tmp_path / "cost.json"
    parts = {"siblings": 2, "template": 60, "observation": 29, "response": 16, "action": 1, "skill": 30}
    sizes = [text for name, value in parts.items() for text in (f"--{name}", str(value))]
    shown = run_script(SCRIPT, "--output", output, *sizes)
    tokens = json.loads(output.read_text())["tokens"]
    for phase in ("update", "scoring"):
        assert tokens["rows"][phase]["padded"] > 10 * tokens["conversation"][phase]["padded"]
        assert tokens["alone"][phase]["useful"] > 10 * tokens["conversation"][phase]["useful"]
    assert tokens["conversation"]["update"]["rows"] == 2 and tokens["rows"]["update"]["rows"] == 100
    assert "2 episodes of 50 turns" in shown

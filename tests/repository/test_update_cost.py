"""`benchmarks/update_cost.py` from outside, on a round of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import TESTS, run_script

pytestmark = pytest.mark.slow  # a minute: before a release

SCRIPT = TESTS.parent / "benchmarks" / "update_cost.py"


@pytest.mark.parametrize("recipe", ["webshop_tiny", "searchqa_tiny"])
def test_a_round_is_recorded_replayed_and_compared(tmp_path: Path, recipe: str) -> None:
    output, recording = tmp_path / "cost.json", tmp_path / "rounds.pt"
    size = ["--recipe", recipe, "--rounds", "1", "--tasks", "2", "--repeats", "1", "--threads", "1", "--clock", "cpu"]
    shown = run_script(SCRIPT, "--output", output, "--recording", recording, *size)
    result = json.loads(output.read_text())
    assert set(result["ratio"]) == set(result["against_stock"]) == {"median", "low", "high"}
    assert result["checksum"] in shown and recording.is_file()
    assert result["differences"]["advantages"] < 1e-5 and result["differences"]["gradient_align_opsd"] < 1e-4
    assert result["ratio_by_phase"]["update"] and "privileged_thinking" in result["variants"]["align_opsd"]["phases"]
    ours, stock = (result["variants"][name]["phases"]["update"] for name in ("grpo", "stock"))
    assert ours["padded_tokens"] < stock["padded_tokens"]
    assert ours["useful_tokens"] / ours["padded_tokens"] > stock["useful_tokens"] / stock["padded_tokens"]
    print(shown)

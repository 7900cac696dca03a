"""The check for GPUs runs on CPU as it would there, on a toy shape."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"


def test_gpu_check_measures_both_methods_on_any_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    arguments = ["--device", "cpu", "--shape", "tiny", "--tasks", "1", "--turns", "2", "--completion", "16"]
    check.main([*arguments, "--output", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    warm, grpo, align = found["rounds"]
    assert [warm["method"], grpo["method"], align["method"]] == ["align_opsd", "grpo", "align_opsd"]
    assert grpo["tokens"]["thought"] == 0 and align["tokens"]["thought"] > 0, "the method did change between rounds"
    assert align["tokens"]["scored"] > grpo["tokens"]["scored"] > 0
    for one in (grpo, align):
        assert one["turns"] == 16 and one["tokens"]["sampled"] <= 16 * 16
        assert one["tokens"]["updated"] > one["tokens"]["sampled"]
        assert sum(one["phases"].values()) <= one["seconds"]
        assert 0 < one["rates"]["update"]["share_of_matmul"] < 1
    assert found["peak_gib"] > 0 and found["estimate_gib"] > 0
    assert found["first_answer"]["decode_step_seconds"] > 0
    printed = capsys.readouterr().out
    assert printed.index("a decode step without vLLM") < printed.index("round 1 of 3") < printed.index("round 3 of 3")
    assert "AlignOPSD / GRPO" in printed and "% of matmul" in printed

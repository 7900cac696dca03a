"""The check for GPUs runs on CPU as it would there, on a toy shape."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("model", [["--shape", "tiny"], ["--shape", "qwen3-tiny", "--lora", "4", "--no_vllm"]])
def test_gpu_check_measures_both_methods_on_any_machine(
    check: ModuleType, model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cpu", *model, "--tasks", "1", "--turns", "2", "--completion", "16"]
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
        same = one["comparable"]
        assert 0 < same["mfu"] < 1 and same["seconds_a_round"] == one["seconds"]
        assert same["trained_tokens_per_second"] == one["tokens"]["updated"] / one["phases"]["update"]
        assert same["generated_tokens_per_second"] == one["tokens"]["sampled"] / one["phases"]["rollout"]
    assert found["peak_gib"] > 0 and found["estimate_gib"] > 0
    assert found["first_answer"]["decode_step_seconds"] > 0
    printed = capsys.readouterr().out
    assert printed.index("a decode step without vLLM") < printed.index("round 1 of 3") < printed.index("round 3 of 3")
    assert "AlignOPSD / GRPO" in printed and "% of matmul" in printed and "MFU" in printed


@pytest.mark.parametrize(
    ("trains_all", "tied", "linear"),
    [  # 2 layers of 100 weights and a head of 30 x 4 on the response's 3 of 10 tokens: 200 x 10 + 120 x 3 = 2360
        (True, True, 6 * 2360),
        (False, True, 4 * 2360),
        (True, False, 6 * 2360),
    ],
)
def test_flop_of_an_update_are_those_of_the_model(check: ModuleType, trains_all: bool, tied: bool, linear: int) -> None:
    config = SimpleNamespace(
        **{"vocab_size": 30, "hidden_size": 4, "tie_word_embeddings": tied},
        **{"num_attention_heads": 2, "head_dim": 3, "num_hidden_layers": 2},
    )
    parameters = 200 + 120 * (1 if tied else 2)
    attention = 6 * (2 * 3) * 2 * (6**2 + 4**2)  # causal: 2 T^2 forward and 4 T^2 backward, a channel and layer
    assert check.model_flop(config, parameters, [(6, 2), (4, 1)], trains_all) == linear + attention


def test_sizes_of_a_published_round_are_defaults(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "measure", lambda options: exit(f"{options.shape} {options.tasks} {options.turns}"))
    with pytest.raises(SystemExit, match=f"tiny 16 {check.LIKE['sdar_51']['turns']}"):
        check.main(["--device", "cpu", "--round", "sdar_51", "--shape", "tiny", "--output", "nowhere"])

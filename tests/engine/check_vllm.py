"""vLLM's real engine under the trainer. `.ci/vllm` runs this; the name keeps it out of the suite, which has no vLLM.

Each run is a process (or two) of its own: three rounds of AlignOPSD at learning rate 1e-2 with a float32 engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
TESTS = Path(__file__).parents[1]
RUNS = {
    "one process": [],
    "LoRA": ["--lora"],
    "SmolLM2, LoRA": ["--smollm2", "--lora"],
    "two FSDP2 processes": ["--fsdp"],
    "two FSDP2 processes, LoRA": ["--fsdp", "--lora"],
    "two FSDP2 processes, sleep mode": ["--fsdp", "--sleep"],
    "one process, continuous": ["--continuous"],
    "base teacher": ["--base", "--siblings"],
    "base teacher, sleep mode": ["--base", "--sleep"],
    "base teacher, continuous": ["--base", "--siblings", "--continuous"],
    "base teacher, LoRA": ["--base", "--lora"],
    "base teacher, LoRA merged": ["--base", "--siblings", "--lora", "--merged"],
    "base teacher, LoRA, continuous": ["--base", "--siblings", "--lora", "--continuous"],
    "base teacher, two FSDP2 processes": ["--base", "--siblings", "--fsdp"],
    "base teacher, two FSDP2 processes, LoRA, sleep mode, continuous": [
        *("--base", "--siblings", "--fsdp", "--lora", "--sleep", "--continuous"),
    ],
    "two FSDP2 processes, sleep mode, continuous": ["--fsdp", "--sleep", "--continuous"],
}
CLOSE = 1e-3
FAR = 0.1


@pytest.fixture(params=RUNS, scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process of a run measured."""
    folder, flags = tmp_path_factory.mktemp("run"), RUNS[request.param]
    processes = 2 if "--fsdp" in flags else 1
    launcher = (
        ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv-backend", "c10d"] if processes > 1 else []
    )
    command = [sys.executable, *launcher, str(TESTS / "engine" / "engine_run.py"), str(folder), *flags]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    with (folder / "log.txt").open("w") as log:
        ended = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=3600)
    assert ended.returncode == 0, (folder / "log.txt").read_text(errors="replace")[-6000:]
    results = [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(processes)]
    print(f"\n{request.param}")
    for rank, result in enumerate(results):
        print(f"  process {rank}: {json.dumps(result)}")
    return results


def test_engine_samples_from_the_policy_as_it_is(run: list[dict[str, Any]]) -> None:
    for result in run:
        assert result["processes"] == len(run)
        assert len(result["furthest_by_round"]) == 3
        assert max(result["furthest_by_round"]) < CLOSE, "before the first update and after each"
        assert len(result["furthest_of_teacher"]) == 3 and max(result["furthest_of_teacher"]) < CLOSE
        assert result["served"] == (result["lora"] and not result["merged"])
        assert result["furthest_after"] < CLOSE
        assert result["furthest_without_push"] > FAR, "the control: without a push the weights must differ"
        assert min(result["largest_advantage_by_round"]) > 0 and min(result["gradient_norms"]) > 0
        assert min(result["share_with_advantage_by_round"]) > 0.5, "most turns are trained in every round"


def test_thinking_of_all_turns_is_one_request(run: list[dict[str, Any]]) -> None:
    most = [max(turns) for turns in zip(*(result["turns_by_round"] for result in run), strict=True)]
    for result in run:
        for turns in () if result["continuous"] else most:
            assert turns in result["prompts_by_call"], "padded to the busiest process"
        assert result["left_in_engine"] == 0
        assert result["sequences_at_once"] == 256
        assert result["tokens_a_step"] == (65536 if result["continuous"] else 8192)
        assert result["evaluated"] == 12


def test_weights_are_pushed_once_a_round(run: list[dict[str, Any]]) -> None:
    for result in run:
        sleeps, wakes = (result["sleep_calls"].count(name) for name in ("sleep", "wake"))
        assert sleeps == (wakes + 1 if sleeps else 0), "asleep from the start and after each use"
        # three rounds, the measurement and the evaluation; asleep, what was pushed is gone, so the last pushes too
        # a teacher that is no adapter is pushed too, in each round
        assert len(result["pushes_before_call"]) == (5 if sleeps else 4) + 3 * (
            result["teacher"] and not result["served"]
        )

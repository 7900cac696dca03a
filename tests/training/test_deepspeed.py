"""ZeRO-2 and ZeRO-3 on two real processes train as DDP does, save, resume, and end together. Needs the extra
`deepspeed`, which compiles an operator at its first use (a C++ compiler, some minutes); `.ci/run` installs it and runs
these last. What each case is: `spread.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.trainers import difference
from spread import CASES, ENCODED, launch, load, prepare
from transformers import AutoModelForCausalLM

pytest.importorskip("deepspeed", reason="pip install -c constraints.txt -e '.[deepspeed]'")
STAGES = {"zero2": 1.0, "zero3": 0.0}  # the share of the policy that a process has between steps as parameters
RUNS = {"zero2": ("plain", "accumulation", "lora", "distribution", "down"), "zero3": (*CASES, "down", "failing")}
"""ZeRO-2 shards less than ZeRO-3, and shows it in fewer runs."""
pytestmark = pytest.mark.full


def stages(*runs: str) -> pytest.MarkDecorator:
    """The stages of each run."""
    pairs = [(stage, run) for run in runs for stage in STAGES if run in RUNS[stage]]
    return pytest.mark.parametrize(("stage", "case"), pairs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("spread")
    prepare(target)
    for strategy in ("ddp", *STAGES):  # DeepSpeed's state does not outlive its run: a launch for each
        launch(target, [strategy], timeout=1200, SPREAD_CASES=" ".join(RUNS.get(strategy, CASES)))
    return target


@stages(*CASES)
def test_loss_gradient_and_weights_are_those_of_ddp(folder: Path, stage: str, case: str) -> None:
    expected, found = load(folder, "ddp", case)[0], load(folder, stage, case)[0]
    assert len(found["loss"]) == len(found["norm"]) == CASES[case].get("max_steps", 3)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["norm"] == pytest.approx(expected["norm"], abs=3e-6)
    assert difference(found["weights"], expected["weights"]) < 1e-5
    assert max(found["norm"]) > 0.1, "nothing was learned, so nothing was compared"
    assert found["held"] == STAGES[stage], "the policy was not spread as its stage says"


@stages("beta", "lora")
def test_the_reference_is_the_policy_before_the_first_update(folder: Path, stage: str, case: str) -> None:
    kl = load(folder, stage, case)[0]["kl"]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and max(kl) > 1e-3


@stages(*ENCODED)
def test_every_process_has_the_same_encoder(folder: Path, stage: str, case: str) -> None:
    rows = [rank["embedding"] for rank in load(folder, stage, case)]
    assert torch.equal(rows[0], rows[1]) and float(rows[0].norm()) == pytest.approx(1.0)


@stages("sampled")
def test_processes_that_finish_a_generation_early_do_not_stop_the_last(folder: Path, stage: str, case: str) -> None:
    first, second = (rank["longest"] for rank in load(folder, stage, case))
    assert len(first) == len(second) and first != second


@stages("plain")
def test_resuming_repeats_the_remaining_steps(folder: Path, stage: str, case: str) -> None:
    whole, resumed = load(folder, stage, case)[0], load(folder, stage, "resumed")[0]
    assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert difference(resumed["weights"], whole["weights"]) < 1e-6


@stages("plain")
def test_the_trained_model_is_written_whole(folder: Path, stage: str, case: str) -> None:
    written = AutoModelForCausalLM.from_pretrained(folder / stage / case).state_dict()
    expected = load(folder, stage, case)[0]["weights"]
    assert difference({name: written[name] for name in expected}, expected) == 0.0


@stages("down")
def test_environments_down_on_one_process_end_the_run_on_all_and_it_resumes(
    folder: Path, stage: str, case: str
) -> None:
    ranks = load(folder, stage, case)
    assert ranks[0]["message"] == ranks[1]["message"] == "the shop of process 1 is closed"
    assert {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"} <= set(ranks[0]["files"])
    assert len(ranks[0]["loss"]) == 3


@stages("failing")
def test_a_process_whose_environments_all_fail_goes_on(folder: Path, stage: str, case: str) -> None:
    ranks = load(folder, stage, case)
    assert len(ranks[0]["loss"]) == 3 and ranks[0]["loss"] == ranks[1]["loss"]
    assert all(entry["stop/environment_error"] == 0.5 for entry in ranks[0]["history"] if "loss" in entry)

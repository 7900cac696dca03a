"""FSDP2, ZeRO-2 and ZeRO-3 on two real processes train as DDP does, save, resume, and end together. What each run is:
`spread.py`. ZeRO needs the extra `deepspeed`, which compiles an operator at its first use (a C++ compiler, a minute).
Every launch takes both cores: `.ci/run` runs these alone, at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.trainers import difference
from spread import CASES, ENCODED, ROWS, RUNS, launch, load, prepare
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.full
HELD = {"fsdp2": 0.5, "zero2": 1.0, "zero3": 0.0}  # the share of the policy that a process has between steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("spread")
    prepare(target)
    launch(target, "ddp", "fsdp2")
    return target


@pytest.fixture
def strategy(request: pytest.FixtureRequest, folder: Path) -> str:
    """DeepSpeed's state does not outlive its run: a launch for each of its stages."""
    if request.param.startswith("zero"):
        pytest.importorskip("deepspeed", reason="pip install -c constraints.txt -e '.[deepspeed]'")
        if not (folder / request.param).exists():
            launch(folder, request.param)
    return request.param


def runs(*cases: str) -> pytest.MarkDecorator:
    """Each run under the strategies that it is made under."""
    pairs = [(strategy, case) for strategy in HELD for case in cases if case in RUNS[strategy]]
    return pytest.mark.parametrize(("strategy", "case"), pairs, indirect=["strategy"])


@runs(*CASES)
def test_loss_gradient_and_weights_are_those_of_ddp(folder: Path, strategy: str, case: str) -> None:
    expected, found = load(folder, "ddp", case)[0], load(folder, strategy, case)[0]
    assert len(found["loss"]) == len(found["norm"]) == CASES[case].get("max_steps", 3)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["norm"] == pytest.approx(expected["norm"], abs=3e-6)
    assert difference(found["weights"], expected["weights"]) < 1e-5
    assert max(found["norm"]) > 0.1, "nothing was learned, so nothing was compared"
    assert found["held"] == pytest.approx(HELD[strategy], abs=0.01), "the policy was not spread as its strategy says"


def test_merged_rows_of_a_conversation_train_as_a_row_a_turn_does(folder: Path) -> None:
    """Under DDP; the others' merged rows train as its do."""
    merged, rows = (load(folder, "ddp", case)[0] for case in ("conversation", ROWS))
    assert merged["history"][0]["conversation/runs"] == 1.0
    assert merged["loss"] == pytest.approx(rows["loss"], abs=1e-6)
    assert merged["norm"] == pytest.approx(rows["norm"], abs=1e-5)
    assert difference(merged["weights"], rows["weights"]) < 1e-5


@runs("teacher", "lora")
def test_the_reference_is_the_policy_before_the_first_update(folder: Path, strategy: str, case: str) -> None:
    kl = load(folder, strategy, case)[0]["kl"]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and max(kl) > 1e-3


@runs(*ENCODED)
def test_every_process_has_the_same_encoder(folder: Path, strategy: str, case: str) -> None:
    rows = [rank["embedding"] for rank in load(folder, strategy, case)]
    assert torch.equal(rows[0], rows[1]) and float(rows[0].norm()) == pytest.approx(1.0)


@runs("sampled")
def test_processes_that_finish_a_generation_early_go_on_until_the_last(folder: Path, strategy: str, case: str) -> None:
    first, second = (rank["longest"] for rank in load(folder, strategy, case))
    assert len(first) == len(second) and first != second


@pytest.mark.parametrize("strategy", ["fsdp2"], indirect=True)
def test_what_scoring_leaves_whole_is_in_shards_before_a_push(folder: Path, strategy: str) -> None:
    for rank in load(folder, strategy, "plain"):
        assert rank["whole_after_scoring"] > 0 and rank["whole_before_push"] == 0


RESUMED = [*((one, "plain", "resumed") for one in HELD), ("fsdp2", "full", "full_resumed")]


@pytest.mark.parametrize(("strategy", "name", "other"), RESUMED, indirect=["strategy"])
def test_resuming_repeats_the_remaining_steps(folder: Path, strategy: str, name: str, other: str) -> None:
    whole, resumed = load(folder, strategy, name)[0], load(folder, strategy, other)[0]
    assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert difference(resumed["weights"], whole["weights"]) < 1e-6


@runs("plain")
def test_the_trained_model_is_written_whole(folder: Path, strategy: str, case: str) -> None:
    written = AutoModelForCausalLM.from_pretrained(folder / strategy / case).state_dict()
    expected = load(folder, strategy, case)[0]["weights"]
    assert difference({name: written[name] for name in expected}, expected) == 0.0
    if strategy == "fsdp2":
        checkpoint = folder / strategy / case / "checkpoint-1"
        assert not list(checkpoint.glob("*.safetensors")) and list(checkpoint.glob("pytorch_model_fsdp_0/*"))


@runs("down")
def test_environments_down_on_one_process_end_the_run_on_all_and_it_resumes(
    folder: Path, strategy: str, case: str
) -> None:
    ranks = load(folder, strategy, case)
    assert ranks[0]["message"] == ranks[1]["message"] == "the shop of process 1 is closed"
    files = {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", *(["optimizer_0"] * (strategy == "fsdp2"))}
    assert files <= set(ranks[0]["files"])
    assert len(ranks[0]["loss"]) == 3


@runs("failing")
def test_a_process_whose_environments_all_fail_goes_on(folder: Path, strategy: str, case: str) -> None:
    ranks = load(folder, strategy, case)
    assert len(ranks[0]["loss"]) == 3 and ranks[0]["loss"] == ranks[1]["loss"]
    assert all(entry["stop/environment_error"] == 0.5 for entry in ranks[0]["history"] if "loss" in entry)

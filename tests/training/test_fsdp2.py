"""FSDP2 on two real processes trains as DDP does, saves, resumes, and ends together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.trainers import difference
from spread import CASES, ENCODED, launch, load, prepare
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("spread")
    prepare(target)
    launch(target, ["ddp", "fsdp2"])
    return target


@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_weights_are_those_of_ddp(folder: Path, case: str) -> None:
    expected, found = load(folder, "ddp", case)[0], load(folder, "fsdp2", case)[0]
    assert len(found["loss"]) == len(found["norm"]) == CASES[case].get("max_steps", 3)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["norm"] == pytest.approx(expected["norm"], abs=3e-6)
    assert difference(found["weights"], expected["weights"]) < 1e-5
    assert max(found["norm"]) > 0.1, "nothing was learned, so nothing was compared"
    assert found["held"] == pytest.approx(0.5, abs=0.01), "the policy was not sharded"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_merged_rows_of_a_conversation_train_as_a_row_a_turn_does(folder: Path, strategy: str) -> None:
    merged, rows = (load(folder, strategy, case)[0] for case in ("conversation", "conversation_rows"))
    assert merged["history"][0]["conversation/runs"] == 1.0
    assert merged["loss"] == pytest.approx(rows["loss"], abs=1e-6)
    assert merged["norm"] == pytest.approx(rows["norm"], abs=1e-5)
    assert difference(merged["weights"], rows["weights"]) < 1e-5


@pytest.mark.parametrize("case", ["beta", "lora"])
def test_the_reference_is_the_policy_before_the_first_update(folder: Path, case: str) -> None:
    kl = load(folder, "fsdp2", case)[0]["kl"]
    assert kl[0] == pytest.approx(0.0, abs=1e-6) and max(kl) > 1e-3


@pytest.mark.parametrize("case", ENCODED)
def test_every_process_has_the_same_encoder(folder: Path, case: str) -> None:
    rows = [rank["embedding"] for rank in load(folder, "fsdp2", case)]
    assert torch.equal(rows[0], rows[1]) and float(rows[0].norm()) == pytest.approx(1.0)


def test_processes_that_finish_a_generation_early_go_on_until_the_last(folder: Path) -> None:
    first, second = (rank["longest"] for rank in load(folder, "fsdp2", "sampled"))
    assert len(first) == len(second) and first != second


def test_what_scoring_leaves_whole_is_in_shards_before_a_push(folder: Path) -> None:
    for rank in load(folder, "fsdp2", "plain"):
        assert rank["whole_after_scoring"] > 0 and rank["whole_before_push"] == 0


@pytest.mark.parametrize(("name", "other"), [("plain", "resumed"), ("full", "full_resumed")])
def test_resuming_repeats_the_remaining_steps(folder: Path, name: str, other: str) -> None:
    whole, resumed = load(folder, "fsdp2", name)[0], load(folder, "fsdp2", other)[0]
    assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert difference(resumed["weights"], whole["weights"]) < 1e-6


def test_the_trained_model_is_written_whole_beside_sharded_checkpoints(folder: Path) -> None:
    written = AutoModelForCausalLM.from_pretrained(folder / "fsdp2" / "plain").state_dict()
    expected = load(folder, "fsdp2", "plain")[0]["weights"]
    assert difference({name: written[name] for name in expected}, expected) == 0.0
    checkpoint = folder / "fsdp2" / "plain" / "checkpoint-1"
    assert not list(checkpoint.glob("*.safetensors")) and list(checkpoint.glob("pytorch_model_fsdp_0/*"))


def test_environments_down_on_one_process_end_the_run_on_all_and_it_resumes(folder: Path) -> None:
    ranks = load(folder, "fsdp2", "down")
    assert ranks[0]["message"] == ranks[1]["message"] == "the shop of process 1 is closed"
    assert {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "optimizer_0"} <= set(ranks[0]["files"])
    assert len(ranks[0]["loss"]) == 3


def test_a_process_whose_environments_all_fail_goes_on(folder: Path) -> None:
    ranks = load(folder, "fsdp2", "failing")
    assert len(ranks[0]["loss"]) == 3 and ranks[0]["loss"] == ranks[1]["loss"]
    assert all(entry["stop/environment_error"] == 0.5 for entry in ranks[0]["history"] if "loss" in entry)

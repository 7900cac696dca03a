"""Cards and pushes of a run, against a stand-in for the Hub on loopback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from hub_stand_in import Hub
from huggingface_hub import ModelCard

from alignopsd_trl import cli
from alignopsd_trl.sharing.card import changed_settings, is_hub_id, model_card
from alignopsd_trl.sharing.hub import PushFailed, push_run, push_trajectories

RUNS = Path(__file__).parent / "data" / "runs"
TOKEN = "hf_a-secret-that-nobody-may-see"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run's folder: results and records as it left them, weights that are only bytes."""
    folder = Path(shutil.copytree(RUNS / "finished", tmp_path / "run"))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "model.safetensors").write_bytes(b"older weights")
    (folder / "README.md").write_text(model_card(results(folder), "somebody/shopper"))
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch):
    """Points huggingface_hub at a stand-in; it reads its endpoint once, so the constants are what is replaced."""

    def point(address: str) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's tries

    return point


def test_the_card_says_how_well_and_how_to_repeat_it() -> None:
    found = results(RUNS / "finished")
    card = ModelCard(model_card(found, "somebody/shopper", "apache-2.0"))
    success = next(one for one in card.data.eval_results if one.metric_type == "success_rate")
    assert success.metric_value == pytest.approx(found["after"]["success"]["mean"], abs=0.01)
    assert success.dataset_args["checksum"] == found["after"]["checksum"]
    for expected in (
        found["after"]["checksum"],
        found["skill_bank"]["checksum"],
        found["encoder"]["checksum"],
        "python -m alignopsd_trl.evaluation --model somebody/shopper --environment webshop_tiny",
        f"--limit {found['recipe']['panel_limit']}",
        f"{found['before']['success']['mean']:.1f}",
        '"learning_rate": 0.0003',
    ):
        assert expected in card.text, expected
    assert "None" not in card.content and "[None]" not in card.content


def test_a_base_model_is_named_where_it_is_one_of_the_hub() -> None:
    found = results(RUNS / "finished")
    assert ModelCard(model_card(found, "x/y")).data.base_model is None  # a shipped policy has no id there
    found["model"] |= {"name": "Qwen/Qwen2.5-3B-Instruct", "checksum": None}
    assert ModelCard(model_card(found, "x/y")).data.base_model == "Qwen/Qwen2.5-3B-Instruct"
    assert not is_hub_id("./outputs/run") and not is_hub_id("tiny") and is_hub_id("owner/name")


def test_an_evaluation_that_was_not_made_is_not_made_up() -> None:
    card = model_card(results(RUNS / "finished") | {"before": None}, "x/y")
    assert "not measured" in card


def test_settings_of_a_card_are_those_that_differ() -> None:
    changed = changed_settings({"alpha_max": 0.8, "credit_temperature": 0.1, "hub_token": TOKEN, "output_dir": "o"})
    assert changed == {"credit_temperature": 0.1}


def test_a_push_is_one_commit_without_trajectories(run: Path, endpoint: Any) -> None:
    with Hub() as hub:
        endpoint(hub.endpoint)
        push_run(run, "somebody/shopper", TOKEN)
    assert hub.commits == {"somebody/shopper": 1}
    paths = {path for _, _, path in hub.files}
    assert {"model.safetensors", "README.md", "results.json", "config.json"} <= paths
    assert not any(path.startswith(("trajectories", "checkpoint")) for path in paths)
    assert hub.files["models", "somebody/shopper", "model.safetensors"] == b"weights"
    assert any(TOKEN in (sent or "") for sent in hub.tokens)
    assert not any(TOKEN.encode() in content for content in hub.files.values())


def test_trajectories_are_a_data_set_with_two_configurations(run: Path, endpoint: Any, tmp_path: Path) -> None:
    with Hub() as hub:
        endpoint(hub.endpoint)
        push_trajectories(run, "somebody/trips", TOKEN)
    for (_, _, path), content in hub.files.items():
        target = tmp_path / "pulled" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    turns = load_dataset(str(tmp_path / "pulled"), "turns", split="train", cache_dir=str(tmp_path / "cache"))
    episodes = load_dataset(str(tmp_path / "pulled"), "episodes", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(turns) == sum(episodes["turns"]) > len(episodes) > 0
    assert "credit_weight" in turns.column_names


@pytest.mark.parametrize("fault", ["refused", "broken", "away"])
def test_a_push_that_fails_costs_nothing(run: Path, endpoint: Any, fault: str, capsys: pytest.CaptureFixture) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with Hub(refuse=fault == "refused", break_off=fault == "broken") as hub:
        endpoint("http://127.0.0.1:9" if fault == "away" else hub.endpoint)
        with pytest.raises(PushFailed, match=f"push again: alignopsd push {run} somebody/shopper"):
            push_run(run, "somebody/shopper", TOKEN)
        with pytest.raises(SystemExit) as stopped:
            cli.main(["push", str(run), "somebody/shopper", "--token", TOKEN])
    assert stopped.value.code == 1 and TOKEN not in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_is_not_finished_is_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="resume the run first"):
        push_run(tmp_path, "somebody/shopper")

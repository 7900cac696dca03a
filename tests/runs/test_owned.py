"""One rule for what commands write: they replace and remove what a command of ours wrote there, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd
import pytest
from fakes.own_task import fails
from fakes.recorded import RUNS

from alignopsd_trl.commands.analysis.drawing import AnalysisResult
from alignopsd_trl.commands.own_task.demonstrations import write_demonstrations
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.warm_start.warm_start import warm_start
from alignopsd_trl.commands.viewer import view_run
from alignopsd_trl.common.files import write_json
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.runs.owned import NOTES, NotOurs, begin, foreign, note, owned
from alignopsd_trl.runs.state import RunFolderError, list_files

CONFIGURATION = {"method": "grpo"}
OF_A_RUN = [
    *("log.jsonl", "README.md", "config.json", "recipe.json", "model.safetensors", "tokenizer.json", "results.json"),
    *("run.json", "evaluation_after.json", "trajectories/mine.json", "trajectories/step_000000_rank000.parquet"),
    *("completions/mine.txt", "checkpoint-3/notes.txt", "checkpoint-3/trainer_state.json", "trajectories"),
]


def _content(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("name", OF_A_RUN)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_refuses_a_folder_with_a_file_in_its_places(tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    told = "is there, and is not as a run of this folder wrote it.*move it away"
    with pytest.raises(RunFolderError, match=f"/{name.partition('/')[0]} {told}"):
        RunFolder.claim(tmp_path, CONFIGURATION, overwrite=overwrite)
    assert (tmp_path / name).read_text() == "mine"


def test_overwriting_removes_a_run_and_keeps_what_others_put_into_it(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, CONFIGURATION).release()
    theirs = ["log.jsonl", "trajectories/step_000000_rank000.parquet", "completions/completions_00001.parquet"]
    theirs += ["results.json", "checkpoint-3/trainer_state.json", "checkpoint-3/deep/rng_state.pth"]
    mine = ["trajectories/mine.json", "completions/step.txt", "checkpoint-3/notes.txt", "notes.md", "checkpoint-x"]
    mine += ["trajectories/step_x.parquet", "checkpoint-mine/config.json"]
    for name in theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    list_files(tmp_path / "checkpoint-3")
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    RunFolder.claim(tmp_path, CONFIGURATION, overwrite=True).release()
    assert sorted(_content(tmp_path)) == sorted([*mine, "run.json", "run.lock", NOTES])


@pytest.mark.parametrize("resume", [None, True])
def test_a_card_or_settings_that_the_user_wrote_since_stay(tmp_path: Path, resume: bool | None) -> None:
    RunFolder.claim(tmp_path, CONFIGURATION).release()
    with owned("train", tmp_path / "README.md"):
        (tmp_path / "README.md").write_text("the run's")
    RunFolder.claim(tmp_path, CONFIGURATION, resume=resume).release()
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(RunFolderError, match="README.md is there"):
        RunFolder.claim(tmp_path, CONFIGURATION, resume=resume)


def test_a_run_killed_while_it_writes_goes_on(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, CONFIGURATION).release()
    model, card = tmp_path / "model.safetensors", tmp_path / "README.md"
    begin([model, card], "train")
    model.write_text("weights, and no note of them")
    RunFolder.claim(tmp_path, CONFIGURATION, resume=True).release()
    note([model, card], "train")
    model.write_text("mine")
    with pytest.raises(RunFolderError, match=r"model.safetensors is there"):
        RunFolder.claim(tmp_path, CONFIGURATION, resume=True)
    card.write_text("mine")
    assert foreign([card], "train") == [card]


def test_a_run_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, CONFIGURATION).release()
    (tmp_path / NOTES).unlink()
    (tmp_path / "config.json").write_text("{}")
    write_json(tmp_path / "checkpoint-2" / "trainer_state.json", {"global_step": 2})
    run = RunFolder.claim(tmp_path, CONFIGURATION, resume=True)
    run.release()
    assert run.update == 2


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "demonstrate": ("task.py", lambda place: write_demonstrations(place / "task.py", [{"prompt": [], "turn": 0}])),
    "view": ("view.html", lambda place: view_run(RUNS / "finished").save(place / "view.html")),
    "analyse": (
        "x_t.csv",
        lambda place: AnalysisResult("x", {}, {"t": pd.DataFrame({"a": [1]})}, matplotlib.figure.Figure()).save(place),
    ),
}


@pytest.mark.parametrize("command", WRITERS)
def test_a_command_replaces_its_own_file_and_no_other(tmp_path: Path, command: str) -> None:
    name, write = WRITERS[command]
    write(tmp_path)
    made = _content(tmp_path)
    write(tmp_path)
    assert _content(tmp_path) == made, "its own is replaced"
    (tmp_path / name).write_text("mine, edited")
    with pytest.raises(NotOurs, match=f"{name} is there, and is not as alignopsd {command} wrote it"):
        write(tmp_path)
    assert _content(tmp_path) == made | {name: b"mine, edited"}
    shutil.copy(tmp_path / NOTES, tmp_path.parent / NOTES)
    (tmp_path / NOTES).unlink()
    (tmp_path / name).write_bytes(made[name])
    with pytest.raises(NotOurs, match="is there"):
        write(tmp_path)


@pytest.mark.parametrize("by", ["nobody", "train"])
def test_a_warm_start_does_not_replace_another_model(tmp_path: Path, by: str) -> None:
    with owned(by, tmp_path / "model.safetensors"):
        (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(NotOurs, match="model.safetensors is there, and is not as alignopsd warm_start wrote it"):
        warm_start([], tmp_path, WarmStartConfig())
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["evaluate", "--model", "tiny", "--environment", "webshop_tiny"], "results.json"),
        (["evaluate", "--model", "tiny", "--environment", "webshop_tiny"], "trajectories/evaluation.parquet"),
        (["measure", "--model", "tiny", "--environment", "webshop_tiny"], "fidelity.json"),
        (["measure", "webshop_tiny"], "tuned.yaml"),
        (["train", "webshop_tiny", "--plan", "--overwrite_output_dir", "True"], "README.md"),
    ],
)
def test_commands_refuse_before_they_begin(
    tmp_path: Path, argv: list[str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    where = "--output_dir" if argv[0] == "train" else "--output"
    monkeypatch.setattr("sys.argv", [])
    fails([*argv, where, str(tmp_path)], f"{name} is there", capsys=capsys)
    assert _content(tmp_path) == {name: b"mine"}


def test_a_run_does_not_write_over_the_model_that_it_starts_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(resolve_model("tiny"), tmp_path / "checkpoint-3")
    for output in (tmp_path, tmp_path / "checkpoint-3"):
        monkeypatch.setattr("sys.argv", [])
        argv = ["train", "webshop_tiny", "--model", str(tmp_path / "checkpoint-3"), "--plan", "--output_dir"]
        argv += [str(output), "--overwrite_output_dir", "True"]
        fails(argv, "holds the model that the run starts from", capsys=capsys)

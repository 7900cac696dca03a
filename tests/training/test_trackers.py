"""Trackers: the table of a few trajectories, and what each tracker keeps of a run without any network.

Those whose extra isn't installed are skipped by name: pip install -c constraints.txt -e ".[wandb,trackio,tensorboard]".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes.toy_suite import arguments, save_policy

from alignopsd_trl.training.trackers import MOST_CHARACTERS, MOST_ROWS, markdown, send_table, table_rows
from alignopsd_trl.turns import StopReason, Thought, Trajectory, Turn

ROOT = Path(__file__).parents[2]
SECRETS = {"HF_TOKEN": "hf_planted-secret-1", "WANDB_API_KEY": "0" * 31 + "planted-2", "MY_KEY": "planted-secret-3"}


def episode(task: str, rollout: str, reward: float, turns: int = 2, text: str = "look", **rest: Any) -> Trajectory:
    made = [Turn(n, "p", [1], [1], [2], "r", Thought(text, ()), "go", True, text) for n in range(1, turns + 1)]
    return Trajectory({}, task, rollout, reward=reward, turns=made, won=reward > 0, **rest)


def test_the_table_shows_the_best_and_the_worst_of_a_task_that_differs() -> None:
    same = [episode("a", str(number), 1.0) for number in range(4)]
    differ = [episode("b", str(number), reward) for number, reward in enumerate([0.0, 0.5, 1.0, 0.2, 0.3])]
    broken = episode("b", "9", -5.0, stop=StopReason.ENVIRONMENT_ERROR)
    for turn in (turn for one in differ for turn in one.turns):
        turn.row = 0
    credit = {"credit": [0.25], "weight": [float("nan")]}
    rows = table_rows([*same, *differ, broken], credit, 7)
    assert {row["task"] for row in rows} == {"b"} and [row["rollout"] for row in rows[::2]] == ["2", "1", "3", "0"]
    assert all(row["credit"] == 0.25 and row["weight"] is None and row["step"] == 7 for row in rows)
    assert {row["task"] for row in table_rows(same, {}, 0)} == {"a"}
    assert table_rows([broken], {}, 0) == [] and send_table([], 0, ["wandb"], []) is None


def test_the_table_is_capped() -> None:
    long = [episode("a", str(number), number, turns=60, text="x y\n" * 500) for number in range(8)]
    rows = table_rows(long, {}, 0)
    assert len(rows) == MOST_ROWS and max(len(row["observation"]) for row in rows) == MOST_CHARACTERS


def test_texts_of_an_environment_are_inert_in_a_table() -> None:
    text = markdown(["action", "credit"], [["<script>a|b</script>", 0.123456]])
    assert text.splitlines()[-1] == "| &lt;script&gt;a\\|b&lt;/script&gt; | 0.1235 |"


def train(folder: Path, tracker: str, **surroundings: str) -> None:
    """A run of two rounds in a process of its own, in which nothing but loopback can be reached."""
    argv = arguments(folder / "out", save_policy(folder / "policy"), rounds=2, report_to=tracker, evaluate_first=False)
    code = (
        "import socket, sys\n"
        "connect = socket.socket.connect\n"
        "def local(self, place):\n"
        "    assert not isinstance(place, tuple) or place[0] in ('127.0.0.1', '::1', 'localhost'), place\n"
        "    return connect(self, place)\n"
        "socket.socket.connect = local\n"
        "from alignopsd_trl.launch.recipe import main\n"
        f"main('webshop_tiny', {argv!r})\n"
    )
    places = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    surroundings = {**os.environ, **places, **SECRETS, **surroundings}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    no_secret(folder)


def no_secret(folder: Path) -> None:
    for file in folder.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        found = [name for name, value in SECRETS.items() if value.encode() in content]
        assert not found, f"{file} holds {found[0]}"


def needs(package: str) -> Any:
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs the extra {package!r}: pip install -e '.[{package}]'")


@needs("tensorboard")
def test_tensorboard_gets_numbers_and_the_table(tmp_path: Path) -> None:
    train(tmp_path, "tensorboard", TENSORBOARD_LOGGING_DIR=str(tmp_path / "board"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"tensors": 0}).Reload()
    assert [event.step for event in board.Scalars("train/episodes/success")] == [1, 2]
    tables = board.Tensors("trajectories/text_summary")
    assert [one.step for one in tables] == [0, 1]
    text = tables[0].tensor_proto.string_val[0].decode()
    assert text.startswith("| step | task |") and "credit" in text.splitlines()[0] and len(text.splitlines()) > 3


@needs("wandb")
def test_wandb_gets_numbers_and_the_table_offline(tmp_path: Path) -> None:
    train(tmp_path, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    tables = sorted((tmp_path / "wandb").rglob("*.table.json"))
    assert len(tables) == 2
    table = json.loads(tables[0].read_text())
    assert {"task", "rollout", "turn", "credit", "action", "observation"} <= set(table["columns"]) and table["data"]
    assert list((tmp_path / "wandb").rglob("*.wandb"))


@needs("trackio")
def test_trackio_gets_numbers_and_the_table_locally(tmp_path: Path) -> None:
    train(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    content = b"".join(file.read_bytes() for file in (tmp_path / "trackio").rglob("*") if file.is_file())
    assert b"trackio.table" in content and b"episodes/success" in content

"""Trackers: what each keeps of a run without any network.

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

ROOT = Path(__file__).parents[2]
SECRETS = {"HF_TOKEN": "hf_planted-secret-1", "WANDB_API_KEY": "0" * 31 + "planted-2", "MY_KEY": "planted-secret-3"}


def train(folder: Path, tracker: str, **surroundings: str) -> None:
    """A run of two rounds in a process of its own, in which nothing but loopback can be reached."""
    argv = arguments(folder / "out", save_policy(folder / "policy"), rounds=2, report_to=tracker, evaluate_first=False)
    argv += ["--log_completions", "True"]
    code = (
        "import socket, sys\n"
        "connect = socket.socket.connect\n"
        "def local(self, place):\n"
        "    assert not isinstance(place, tuple) or place[0] in ('127.0.0.1', '::1', 'localhost'), place\n"
        "    return connect(self, place)\n"
        "socket.socket.connect = local\n"
        "from alignopsd_trl.commands.launch.recipe import main\n"
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
def test_tensorboard_gets_numbers(tmp_path: Path) -> None:
    train(tmp_path, "tensorboard", TENSORBOARD_LOGGING_DIR=str(tmp_path / "board"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"), size_guidance={"tensors": 0}).Reload()
    assert [event.step for event in board.Scalars("train/episodes/success")] == [1, 2]


@needs("wandb")
def test_wandb_gets_numbers_and_the_table_offline(tmp_path: Path) -> None:
    train(tmp_path, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    tables = sorted((tmp_path / "wandb").rglob("*.table.json"))
    assert len(tables) == 2
    table = json.loads(tables[0].read_text())
    assert {"step", "prompt", "completion", "advantage"} <= set(table["columns"]) and table["data"]
    assert list((tmp_path / "wandb").rglob("*.wandb"))


@needs("trackio")
def test_trackio_gets_numbers_and_the_table_locally(tmp_path: Path) -> None:
    train(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    content = b"".join(file.read_bytes() for file in (tmp_path / "trackio").rglob("*") if file.is_file())
    assert b"trackio.table" in content and b"episodes/success" in content

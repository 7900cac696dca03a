"""A run of two processes as users launch it: one process is killed, the others say how to go on, and the same command
line ends as if nothing had happened."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from equal_runs import assert_same_run
from fakes.toy_suite import arguments, save_policy

import alignopsd_trl.training.checkpoints  # noqa: F401 (teaches torch the name)
from alignopsd_trl.commands.launch import recipe

HERE = Path(__file__).parents[1]
RESUME = ["--resume_from_checkpoint", "True"]
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"],
    "accelerate": (  # its --cpu starts one process, whatever the number
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
        "--dynamo_backend no --main_process_port 0"
    ).split(),
}
LOST = {
    "1:sampling:11": "checkpoint-1",
    "0:crediting:2": "checkpoint-1",
    "1:update:3": "checkpoint-2",
    "0:saving:3": "checkpoint-2",
    "1:saving:2": "checkpoint-1",
    "0:evaluation:2": "checkpoint-3",
    "1:evaluation:1": "",
}
"""Rank, place and how often it was passed; what the others name as whole."""


def _launch(launcher: str, folder: Path, *more: str, lost: str = "") -> subprocess.CompletedProcess:
    environment = os.environ | {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "LOST": lost,
    }
    script = [str(HERE / "lose_one.py")] if lost else []
    recipe = str(HERE.parent / "recipes" / "webshop_tiny.py")
    own = arguments(folder, folder.parent / "policy", rounds=3, save_rounds=1)
    command = [sys.executable, *LAUNCHERS[launcher], *script, recipe, *own, *more]
    return subprocess.run(command, env=environment, cwd=HERE.parent, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("launched")
    save_policy(root / "policy")
    done = _launch("torchrun", root / "whole")
    assert done.returncode == 0, done.stderr[-4000:]
    return root / "whole"


FIRST, *OTHERS = itertools.product(LAUNCHERS, LOST)
CASES = [pytest.param(*FIRST, marks=pytest.mark.full), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS)]


@pytest.mark.parametrize(("launcher", "lost"), CASES)
def test_a_lost_process_costs_what_came_after_the_last_checkpoint(whole: Path, launcher: str, lost: str) -> None:
    folder = whole.parent / f"{launcher}_{lost.replace(':', '_')}"
    ended = _launch(launcher, folder, lost=lost)
    said = [line for line in ended.stderr.splitlines() if line.startswith("webshop_tiny: ")]
    assert ended.returncode != 0 and len(said) == 1, ended.stderr[-4000:]
    assert "another process of this run ended" in said[0] and (LOST[lost] or "no checkpoint was saved yet") in said[0]
    again = _launch(launcher, folder, *RESUME)
    assert again.returncode == 0, again.stderr[-4000:]
    assert_same_run(folder, whole, updates=3)


@pytest.mark.full
def test_one_process_does_not_take_up_a_run_of_two(whole: Path) -> None:
    own = arguments(whole, whole.parent / "policy", rounds=3, save_rounds=1)
    with pytest.raises(ValueError, match="holds a run of 2 processes"):
        recipe.main("webshop_tiny", [*own, *RESUME])


def test_a_state_is_loaded_to_the_name_that_accelerate_gives_the_cpu(tmp_path: Path) -> None:
    torch.save({"exp_avg": torch.arange(3.0)}, tmp_path / "optimizer.pt")
    found = torch.load(tmp_path / "optimizer.pt", map_location=torch.device("cpu", 0), weights_only=True)
    assert found["exp_avg"].tolist() == [0.0, 1.0, 2.0]

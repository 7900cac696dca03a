"""A run may be killed at any moment: what is resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import load_dataset
from equal_runs import assert_same_run, records_of
from fakes.toy_suite import arguments, save_policy

from alignopsd_trl.records import read_file

pytestmark = pytest.mark.full

HERE = Path(__file__).parents[1]


class Runs:
    """A process that forks a run for each call, so that its imports are paid for once."""

    def __init__(self, root: Path):
        path = os.pathsep.join([str(HERE), str(HERE.parent)])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.root, self.policy = root, save_policy(root / "policy")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "killable.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __call__(self, name: str, resume: bool = False, changed: dict[str, Any] | None = None, **job: Any) -> int:
        folder = self.root / name
        argv = arguments(folder, self.policy, **(changed or {}))
        argv += ["--resume_from_checkpoint", "True"] if resume else []
        job |= {"argv": argv, "folder": str(folder), "log": str(self.root / f"{name}.log")}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["status"]

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text()[-3000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    found = Runs(tmp_path_factory.mktemp("runs"))
    assert found("whole") == 0, found.log("whole")
    yield found
    found.process.stdin.close()
    found.process.wait(timeout=60)


def _killed_at(runs: Runs, name: str, last: int, number: int, delay: float) -> None:
    status = runs(name, last=last, signal=number, delay=delay)
    assert status in (-number, 0), runs.log(name)  # the delay may outlast the run
    assert runs(name, resume=True) == 0, runs.log(name)
    assert_same_run(runs.root / name, runs.root / "whole", updates=5)


def _moments(runs: Runs, count: int, seed: int) -> list[tuple[int, int, float]]:
    draw = random.Random(seed)
    events = int((runs.root / "whole.events").read_text())
    numbers = (signal.SIGKILL, signal.SIGTERM)
    return [(draw.randint(1, events), numbers[draw.randrange(2)], draw.uniform(0, 0.02)) for _ in range(count)]


def test_a_run_killed_at_some_moment_ends_as_if_it_had_not_been(runs: Runs) -> None:
    for moment, (last, number, delay) in enumerate(_moments(runs, 3, seed=1)):
        _killed_at(runs, f"some_{moment}", last, number, delay)


def test_a_finished_run_trains_nothing_more_and_evaluates_what_is_missing(runs: Runs) -> None:
    whole = runs.root / "whole"
    before = (whole / "results.json").read_text()
    (whole / "evaluation_after.json").unlink()
    assert runs("whole", resume=True) == 0, runs.log("whole")
    assert not list(whole.glob("checkpoint-6"))
    after = json.loads((whole / "results.json").read_text())
    assert after["after"]["outcomes"] == json.loads(before)["after"]["outcomes"]
    spent = [content["seconds"]["training"] for content in (json.loads(before), after)]
    assert after["updates"] == 5 and 0 < spent[1] <= spent[0], "but for the seconds of the last checkpoint's writing"


def test_the_folder_of_a_run_is_one_table(runs: Runs) -> None:
    table = load_dataset("parquet", data_files=str(runs.root / "whole" / "trajectories" / "*.parquet"), split="train")
    files = sorted(path.name for path in (runs.root / "whole" / "trajectories").iterdir())
    assert files == [f"step_{step:06d}_rank000.parquet" for step in range(5)]
    assert len(table) == len(records_of(runs.root / "whole"))
    assert set(table["run"]) == {json.loads((runs.root / "whole" / "run.json").read_text())["id"]}


def test_a_run_keeps_the_dialogues_of_its_evaluations(runs: Runs) -> None:
    for when in ("before", "after"):
        outcomes = json.loads((runs.root / "whole" / f"evaluation_{when}.json").read_text())["outcomes"]
        turns = read_file(runs.root / "whole" / f"evaluation_{when}.parquet")
        assert {task: list(part.turn) for task, part in turns.groupby("task_id")} == {
            one["task_id"]: list(range(one["turns"])) for one in outcomes
        }
        ends = turns.groupby("task_id").last()
        assert all(ends.action[one["task_id"]][:200] == one["last_action"] for one in outcomes)
        assert (turns.prompt.notna() == (turns.turn == 0)).all() and turns.response.notna().all()


def test_a_longer_run_goes_on_from_a_finished_one(runs: Runs) -> None:
    assert runs("longer", changed={"rounds": 2}) == 0, runs.log("longer")
    assert runs("longer", resume=True) == 0, runs.log("longer")
    frame, whole = records_of(runs.root / "longer"), records_of(runs.root / "whole")
    pd.testing.assert_frame_equal(frame, whole)
    assert runs("longer", changed={"overwrite_output_dir": True}) == 0, runs.log("longer")
    assert json.loads((runs.root / "longer" / "results.json").read_text())["sessions"] == 1


def test_a_round_that_is_passed_over_again_is_played_once(runs: Runs) -> None:
    assert runs("passes", changed={"rounds": 2, "num_iterations": 2, "updates_per_round": 2}) == 0, runs.log("passes")
    played = sorted(path.name for path in (runs.root / "passes" / "trajectories").iterdir())
    assert played == ["step_000000_rank000.parquet", "step_000004_rank000.parquet"]
    assert "2 rounds, 8 updates" in runs.log("passes")
    assert "temperature 0.4 (the updates' rounds: 1)" in runs.log("passes")


def test_a_damaged_checkpoint_is_one_line_and_the_one_before_goes_on(runs: Runs) -> None:
    assert runs("damaged") == 0, runs.log("damaged")
    folder = runs.root / "damaged"
    state = folder / "checkpoint-5" / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:100])
    (folder / "results.json").unlink()
    assert runs("damaged", changed={"resume_from_checkpoint": folder / "checkpoint-5"}) != 0
    assert f"resume_from_checkpoint={folder / 'checkpoint-4'} goes on there" in runs.log("damaged")
    assert runs("damaged", resume=True) == 0, runs.log("damaged")
    assert f"{state} is damaged" in runs.log("damaged")
    assert "checkpoint-4 is whole: the run goes on there" in runs.log("damaged")
    assert_same_run(folder, runs.root / "whole", updates=5)

"""Whose an output folder is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.own_task import fails

from alignopsd_trl.common.files import plain, read_json, write_json, write_text
from alignopsd_trl.records import SCHEMA, merge_types, record_schema, trace_types, write_records
from alignopsd_trl.runs.folder import TRAIN, RunFolder
from alignopsd_trl.runs.owned import NOTES, note
from alignopsd_trl.runs.state import RunFolderError, broken_off

CONFIGURATION = {"method": "grpo", "learning_rate": 1e-3, "max_steps": 5, "save_steps": 1}


def _checkpoint(folder: Path, update: int) -> None:
    write_json(folder / f"checkpoint-{update}" / "trainer_state.json", {"global_step": update})


def _run(folder: Path, **changed: Any) -> RunFolder:
    run = RunFolder.claim(folder, CONFIGURATION | changed)
    run.release()
    return run


def test_a_folder_in_use_is_refused_within_and_between_processes(tmp_path: Path) -> None:
    held = RunFolder.claim(tmp_path, CONFIGURATION)
    with pytest.raises(RunFolderError, match="in use by another run of this process"):
        RunFolder.claim(tmp_path, CONFIGURATION)
    code = f"from alignopsd_trl.runs.folder import RunFolder; RunFolder.claim({str(tmp_path)!r}, {{}})"
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert f"in use by another run (process {os.getpid()} on" in other.stderr
    held.release()
    assert subprocess.run(command, capture_output=True, cwd=Path(__file__).parents[2]).returncode == 0


def test_a_run_that_left_nothing_gives_way(tmp_path: Path) -> None:
    first, second = _run(tmp_path), _run(tmp_path, learning_rate=2e-3)
    assert first.id != second.id and read_json(tmp_path / "run.json")["id"] == second.id


def test_a_run_that_broke_off_is_said_by_who_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import os
from alignopsd_trl.runs.folder import TRAIN, RunFolder
from alignopsd_trl.runs.owned import NOTES, note
RunFolder.claim({str(tmp_path)!r}, {CONFIGURATION})
os._exit(0)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    assert ended.returncode == 0
    fails(
        ["view", str(tmp_path)],
        f"the run in {tmp_path} broke off in the middle, without a word",
        capsys=capsys,
        lines=2,
    )
    said: list[str] = []
    held = RunFolder.claim(tmp_path, CONFIGURATION, say=said.append)
    assert len(said) == 1 and "called os._exit" in said[0]
    assert not broken_off(tmp_path), "it goes on"
    held.release()
    assert not broken_off(tmp_path), "it gave the folder back"
    RunFolder.claim(tmp_path, CONFIGURATION, say=said.append).release()
    assert len(said) == 1


def test_another_run_is_refused_unless_it_may_be_removed(tmp_path: Path) -> None:
    _run(tmp_path)
    _checkpoint(tmp_path, 3)
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(RunFolderError, match=r"holds another run: learning_rate 0.001 there, 0.002 here"):
        _run(tmp_path, learning_rate=2e-3)
    with pytest.raises(RunFolderError, match=r"holds this very run \(stopped after checkpoint-3\)"):
        _run(tmp_path)
    RunFolder.claim(tmp_path, CONFIGURATION | {"learning_rate": 2e-3}, overwrite=True).release()
    assert not (tmp_path / "checkpoint-3").exists() and (tmp_path / "mine.txt").exists()


def test_a_resume_keeps_the_id_and_names_what_does_not_fit(tmp_path: Path) -> None:
    first, said = _run(tmp_path), []
    _checkpoint(tmp_path, 3)
    longer = CONFIGURATION | {"max_steps": 9}
    second = RunFolder.claim(tmp_path, longer, resume="True", say=said.append)
    second.release()
    assert second.id == first.id and second.sessions == 2 and second.update == 3
    assert said == ["resumed with changes: max_steps 5 there, 9 here"]
    with pytest.raises(RunFolderError, match="can't be resumed with these: method grpo there, gigpo here"):
        RunFolder.claim(tmp_path, CONFIGURATION | {"method": "gigpo"}, resume=True)


def test_a_setting_that_newer_code_brings_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    _run(tmp_path)
    _checkpoint(tmp_path, 3)
    said: list[str] = []
    RunFolder.claim(tmp_path, CONFIGURATION | {"self_check": True}, resume=True, say=said.append).release()
    assert said == ["resumed with changes: self_check None there, True here"]


def test_json_is_strict_and_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"a": math.nan, "b": [np.float32(0.5), -math.inf], "c": Path("x")})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": None, "b": [0.5, None], "c": "x"}
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert json.loads(path.read_text())["c"] == "x" and plain(np.int64(3)) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_columns_keep_their_types_when_there_is_nothing_in_them(tmp_path: Path) -> None:
    empty = {"sources": [[], []], "weight": [1, 2], "cut": ["", ""]}
    other = {"sources": [[1], []], "weight": [0.5, 2.0], "cut": ["guided", ""]}
    types = [trace_types(one) for one in (empty, other, {})]
    assert types[0]["sources"] == types[1]["sources"]
    schema = record_schema(merge_types([types[1], types[2]]))
    write_records(tmp_path / "a.parquet", [], schema)
    write_records(tmp_path / "b.parquet", [{"run": "x", "step": 1, "credit_weight": 1}], schema)
    tables = [pq.read_table(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    assert tables[0].schema == tables[1].schema and tables[1]["credit_weight"].to_pylist() == [1.0]
    assert len(pa.concat_tables(tables)) == 1 and set(SCHEMA.names) < set(schema.names)


def test_a_launch_of_other_processes_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    _run(tmp_path)
    _checkpoint(tmp_path, 3)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RunFolderError, match="a run of 2 processes.*launch it on 2 processes"):
        RunFolder.claim(tmp_path, CONFIGURATION, resume=True)


def test_a_finished_run_makes_room_and_an_interrupted_one_does_not(tmp_path: Path) -> None:
    path, said = tmp_path / "run", []
    first = RunFolder.claim(path, CONFIGURATION, aside=True)
    _checkpoint(path, 3)
    for name in ("config.json", "mine.txt"):
        (path / name).write_text("x")
    note([path / "config.json"], TRAIN)
    first.release()
    with pytest.raises(RunFolderError, match=r"\(stopped after checkpoint-3\): resume_from_checkpoint=True goes on"):
        RunFolder.claim(path, CONFIGURATION, aside=True)
    first.end()
    second = RunFolder.claim(path, CONFIGURATION | {"learning_rate": 2e-3}, say=said.append, aside=True)
    second.release()
    kept = tmp_path / "run.1"
    assert said == [f"{path} held a finished run, which is in {kept} now"] and second.id != first.id
    assert sorted(one.name for one in kept.iterdir()) == [NOTES, "checkpoint-3", "config.json", "run.json"]
    assert sorted(one.name for one in path.iterdir()) == [NOTES, "mine.txt", "run.json", "run.lock"]

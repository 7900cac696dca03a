"""Whether two runs' folders hold the same run: results, records, log and weights, and nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from alignopsd_trl.records import read_records

OF_THE_MACHINE = ("seconds/", "self_check/", "step_time")
OF_THE_SESSION = ("run", "sessions", "seconds", "recipe")


def results_of(folder: Path) -> dict[str, Any]:
    """What is the same for equal runs: without ids, folders and seconds."""
    content = json.loads((folder / "results.json").read_text())
    for name in OF_THE_SESSION:
        del content[name]
    for name in ("output_dir", "resume_from_checkpoint"):
        content["config"].pop(name)
    for when in ("before", "after"):
        del content[when]["run"], content[when]["seconds"]
    content["history"] = [_of_the_run(entry) for entry in content["history"]]
    return content


def records_of(folder: Path) -> pd.DataFrame:
    frame = read_records(folder / "trajectories")
    assert frame.run.nunique() == 1 and not frame.duplicated(["step", "task", "rollout", "turn"]).any()
    return frame.drop(columns="run")


def assert_same_run(folder: Path, whole: Path, updates: int) -> None:
    assert results_of(folder) == results_of(whole)
    pd.testing.assert_frame_equal(records_of(folder), records_of(whole))
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert _log_of(folder) == _log_of(whole)
    assert [entry["step"] for entry in _log_of(folder)] == list(range(1, updates + 1))
    for file in folder.rglob("*"):
        assert not file.name.endswith(".partial"), file
        if file.suffix == ".json":
            json.loads(file.read_text(), parse_constant=pytest.fail)
        elif file.suffix == ".parquet":
            pq.read_table(file)


def _log_of(folder: Path) -> list[dict[str, Any]]:
    return [_of_the_run(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()]


def _of_the_run(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not name.startswith(OF_THE_MACHINE)}

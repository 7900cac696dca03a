"""Files that were cut at any byte, and a disk that is full: what is read says which file it is and what to do."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from alignopsd_trl.records import read_records, write_records
from alignopsd_trl.runs.checkpoints import damage
from alignopsd_trl.runs.files import full_disk_named, json_lines, whole_json, write_json
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.runs.state import RunFolderError

STATE = {"step": 3, "exp_avg": torch.arange(40.0)}
MADE: dict[str, Callable[[Path], Any]] = {
    "model.safetensors": lambda path: save_file({"weight": torch.arange(40.0), "bias": torch.ones(3)}, path),
    "optimizer.pt": lambda path: torch.save(STATE, path),
    "scheduler.pt": lambda path: torch.save({"last_epoch": 3}, path),
    "rng_state.pth": lambda path: torch.save({"cpu": torch.get_rng_state()}, path),
    "config.json": lambda path: path.write_text(json.dumps({"hidden_size": 8, "layers": [1, 2]})),
    "run_state.json": lambda path: path.write_text(json.dumps({"seconds": 1.5})),
}


def _checkpoint(folder: Path, update: int) -> Path:
    place = folder / f"checkpoint-{update}"
    place.mkdir(parents=True)
    for name, make in MADE.items():
        make(place / name)
    write_json(place / "trainer_state.json", {"global_step": update})
    return place


def _cuts(whole: bytes, most: int = 200) -> Iterator[bytes]:
    """At every byte of a short file, at the first, the last and many between of a longer one."""
    step = max(len(whole) // most, 1)
    for length in sorted({*range(0, len(whole), step), len(whole) - 1}):
        yield whole[:length]


@pytest.mark.parametrize("name", MADE)
def test_a_checkpoint_that_is_cut_at_any_byte_is_named(tmp_path: Path, name: str) -> None:
    file = _checkpoint(tmp_path, 3) / name
    assert damage(file.parent) is None
    for part in _cuts(file.read_bytes()):
        file.write_bytes(part)
        assert str(file) in (damage(file.parent) or ""), f"{len(part)} bytes of {name}"


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_that_lost_a_state_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = _checkpoint(tmp_path, 3)
    (checkpoint / name).unlink(missing_ok=True)
    assert f"{checkpoint} is damaged (it has no {name.partition('.')[0]}" in damage(checkpoint)
    for state in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / state).unlink(missing_ok=True)
    assert damage(checkpoint) is None, "weights alone, as save_only_model leaves them"


def test_a_damaged_checkpoint_is_refused_with_the_last_whole_one(tmp_path: Path) -> None:
    run = RunFolder.claim(tmp_path, {"method": "grpo"})
    run.release()
    for update in (2, 3):
        _checkpoint(tmp_path, update)
    file = tmp_path / "checkpoint-3" / "optimizer.pt"
    file.write_bytes(file.read_bytes()[:-9])
    words = r"checkpoint-3/optimizer.pt is damaged .* checkpoint-2 is whole: resume_from_checkpoint="
    with pytest.raises(RunFolderError, match=words) as told:
        RunFolder.claim(tmp_path, {"method": "grpo"}, resume=True)
    again = RunFolder.claim(tmp_path, {"method": "grpo"}, resume=str(tmp_path / "checkpoint-2"))
    again.release()
    assert again.update == 2 and "\n" not in str(told.value)
    (tmp_path / "checkpoint-2" / "rng_state.pth").write_bytes(b"")
    with pytest.raises(RunFolderError, match="overwrite_output_dir=True starts again"):
        RunFolder.claim(tmp_path, {"method": "grpo"}, resume=True)


@pytest.mark.parametrize("content", ["", "garbage", "[]", '{"id": "a"}'])
def test_a_folder_that_does_not_say_whose_it_is_is_refused(content: str, tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, {"method": "grpo"}).release()
    _checkpoint(tmp_path, 2)
    (tmp_path / "run.json").write_text(content)
    for resume in (True, None):
        with pytest.raises(RunFolderError, match=r"run.json is damaged.* or overwrite_output_dir=True removes the run"):
            RunFolder.claim(tmp_path, {"method": "grpo"}, resume=resume)
    RunFolder.claim(tmp_path, {"method": "grpo"}, overwrite=True).release()


def test_a_checkpoint_that_was_not_ended_is_mentioned(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path, {"method": "grpo"}).release()
    for update in (2, 10):
        _checkpoint(tmp_path, update)
    state, said = tmp_path / "checkpoint-10" / "trainer_state.json", []
    for part in _cuts(state.read_bytes().rstrip()):
        state.write_bytes(part)
        run = RunFolder.claim(tmp_path, {"method": "grpo"}, resume=True, say=said.append)
        run.release()
        assert run.update == 2 and said.pop().startswith("checkpoint-10 was not written to its end")
    (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
    run = RunFolder.claim(tmp_path, {"method": "grpo"}, resume=True, say=said.append)
    run.release()
    assert run.update == 0 and said.pop().endswith("no other is whole: the run starts again")


def test_results_that_are_cut_at_any_byte_are_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert whole_json(file) is None
    write_json(file, {"run": "x", "after": {"success": [1.0, 2.0]}})
    lines = file.read_text().rstrip()
    for length in range(len(lines)):
        file.write_text(lines[:length])
        with pytest.raises(ValueError, match=rf"results.json is damaged at line {lines[:length].count(chr(10)) + 1};"):
            whole_json(file)
    for other in ("[]", "null", "3", '"text"'):
        file.write_text(other)
        with pytest.raises(ValueError, match="results.json is damaged at line 1;"):
            whole_json(file)


@pytest.mark.parametrize("line", [b"[1]", b'{"step": 2, "lo', b"", b'{"step": "\xff"}'])
def test_a_damaged_line_of_a_log_is_named(line: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    assert json_lines(file) == []
    file.write_bytes(b'{"step": 1}\n{"step": 2')
    assert json_lines(file) == [{"step": 1}]
    file.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(ValueError, match="log.jsonl is damaged at line 2; move it away"):
        json_lines(file)


def test_records_that_are_cut_anywhere_are_named(tmp_path: Path) -> None:
    for step in range(2):
        write_records(tmp_path / f"step_{step}.parquet", [{"step": step, "task": "t", "rollout": "r", "turn": 0}])
    assert len(read_records(tmp_path)) == 2
    file = tmp_path / "step_1.parquet"
    for part in _cuts(file.read_bytes(), most=40):
        file.write_bytes(part)
        for columns in (None, ["reward"]):
            with pytest.raises(ValueError, match="step_1.parquet is damaged .* move it away"):
                read_records(tmp_path, columns)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 4484928 vs 4484820"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_named_with_what_was_written(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(OSError, match=rf"no room for checkpoint-3: [\d.]+ [GM]iB of .*'{tmp_path}'"):
        with full_disk_named(tmp_path, "checkpoint-3"):
            raise error
    with pytest.raises(RuntimeError, match="a bug"), full_disk_named(tmp_path, "checkpoint-3"):
        raise RuntimeError("a bug")

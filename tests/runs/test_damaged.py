"""Files that were cut at any byte, and a disk that is full: what is read says which file it is and what to do."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.sweeps import mostly_full
from safetensors.torch import save_file

from alignopsd_trl.common.files import full_disk_named, json_lines, whole_json, write_json
from alignopsd_trl.records import read_records, write_records
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.runs.state import RunFolderError, damage, list_files

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


def begun(folder: Path, **options: Any) -> RunFolder:
    """A session of a run that has claimed its folder and given it back."""
    run = RunFolder.claim(folder, {"method": "grpo"}, **options)
    run.release()
    return run


def _cuts(whole: bytes, most: int = 200) -> Iterator[bytes]:
    """At every byte of a short file, at the first, the last and many between of a longer one."""
    step = max(len(whole) // most, 1)
    for length in sorted({*range(0, len(whole), step), len(whole) - 1}):
        yield whole[:length]


@pytest.mark.parametrize("name", MADE)
def test_a_checkpoint_that_is_cut_at_any_byte_is_named(tmp_path: Path, name: str) -> None:
    file = _checkpoint(tmp_path, 3) / name
    list_files(file.parent)
    assert damage(file.parent) is None
    for part in _cuts(file.read_bytes()):
        file.write_bytes(part)
        assert str(file) in (damage(file.parent) or ""), f"{len(part)} bytes of {name}"


def test_a_bit_anywhere_in_a_file_and_the_ends_of_a_large_one_count(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, 3)
    with (checkpoint / "optimizer.pt").open("wb") as file:
        file.truncate(2**27)  # a sparse file
    list_files(checkpoint)
    for name, place in (("model.safetensors", 100), ("rng_state.pth", 999), ("optimizer.pt", 5)):
        with (checkpoint / name).open("r+b") as file:
            file.seek(place)
            before = file.read(1)
            file.seek(place)
            file.write(bytes([before[0] ^ 1]))
            file.flush()
            assert f"{name} is damaged" in (damage(checkpoint) or "")
            file.seek(place)
            file.write(before)
    assert damage(checkpoint) is None


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "text": lambda file: file.write_text("not what was saved"),
    "json": lambda file: file.write_text("[]"),
    "one bit": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
    "gone": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damaged", mostly_full(DAMAGES, quick=2))
@pytest.mark.parametrize("name", [*MADE, "trainer_state.json", "files.json"])
def test_a_resume_names_what_is_damaged_and_goes_on_from_the_last_whole_checkpoint(
    tmp_path: Path, name: str, damaged: str
) -> None:
    begun(tmp_path)
    for update in (2, 3, 10):
        list_files(_checkpoint(tmp_path, update))
    said: list[str] = []
    for update, before in ((10, 3), (3, 2)):
        checkpoint = tmp_path / f"checkpoint-{update}"
        DAMAGES[damaged](checkpoint / name)
        if name == "files.json" and damaged == "gone":
            return  # as of earlier releases; a file's own form then tells
        run = begun(tmp_path, resume=True, say=said.append)
        assert run.update == before and any(checkpoint.name in one and name in one for one in said)
        with pytest.raises(RunFolderError, match=name):
            begun(tmp_path, resume=str(checkpoint))
    DAMAGES[damaged](tmp_path / "checkpoint-2" / name)
    if name == "trainer_state.json":
        return  # a checkpoint without its mark was not written to its end: the run starts again
    with pytest.raises(RunFolderError, match="no other is whole: overwrite_output_dir=True starts again"):
        begun(tmp_path, resume=True)


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    run = begun(folder)
    for place, of in (
        (_checkpoint(folder, 2), run.id),
        (_checkpoint(folder, 3), "abc"),
        (_checkpoint(other, 4), "abc"),
    ):
        write_json(place / "run_state.json", {"run": of})
    said: list[str] = []
    again = begun(folder, resume=True, say=said.append)
    assert again.update == 2 and f"checkpoint-3 is of another run (abc; this one is {run.id})" in said[0]
    with pytest.raises(RunFolderError, match="is no checkpoint in output_dir=.*goes on in its own folder"):
        begun(folder, resume=str(other / "checkpoint-4"))


@pytest.mark.parametrize("resume", [True, "True", None, "checkpoint-2"])
def test_a_run_whose_settings_are_gone_does_not_go_on(tmp_path: Path, resume: Any) -> None:
    begun(tmp_path)
    _checkpoint(tmp_path, 2)
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunFolderError, match="left no run.json, which says with what settings; bring it back"):
        RunFolder.claim(tmp_path, {"method": "gigpo"}, resume=resume)


def test_a_file_of_the_user_among_the_records_stays(tmp_path: Path) -> None:
    run, said = begun(tmp_path), []
    mine = [tmp_path / "trajectories" / name for name in ("step_x.parquet", "mine.json", "step_9_of_mine.parquet")]
    for file in (*mine, tmp_path / "trajectories" / "step_000003_round002_rank000.parquet"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    run.forget_after(2, said.append)
    assert sorted(mine[0].parent.iterdir()) == sorted(mine)
    assert len(said) == 3 and all("is no file of this run; it stays" in one for one in said)


@pytest.mark.parametrize(
    "content", ["", "garbage", "[]", '{"id": "a"}', '{"id": "a", "configuration": {}, "sessions": [1]}']
)
def test_a_folder_that_does_not_say_whose_it_is_is_refused(content: str, tmp_path: Path) -> None:
    begun(tmp_path)
    _checkpoint(tmp_path, 2)
    (tmp_path / "run.json").write_text(content)
    for resume in (True, None):
        with pytest.raises(RunFolderError, match=r"run.json is damaged.* or overwrite_output_dir=True removes the run"):
            begun(tmp_path, resume=resume)
    begun(tmp_path, overwrite=True)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "adapter_model.bin"])
def test_a_checkpoint_of_elsewhere_is_named_before_torch_reads_it(tmp_path: Path, name: str) -> None:
    begun(tmp_path)
    for update in (2, 3):
        _checkpoint(tmp_path, update)  # without a list of its files, as a run that was killed before it leaves it
    file, said = tmp_path / "checkpoint-3" / name, list[str]()
    for spoil, told in (
        (lambda: torch.save({"x": Path("x")}, file), f"{file} holds code (pathlib."),
        (lambda: file.write_bytes(pickle.dumps({"x": Path("x")})), f"{file} is no state that torch saved"),
        (lambda: file.write_bytes(b""), f"{file} is no state that torch saved"),
    ):
        spoil()
        run = begun(tmp_path, resume=True, say=said.append)
        assert run.update == 2 and told in said[-1]
        assert "lists it, as this run writes it last: the checkpoint is of elsewhere; checkpoint-2 is whole" in said[-1]
    with pytest.raises(RunFolderError, match="of elsewhere; checkpoint-2 is whole: resume_from_checkpoint="):
        begun(tmp_path, resume=str(tmp_path / "checkpoint-3"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        *((name, None, "is gone") for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")),
        ("run_state.json", "{", "is not as a run writes it"),
        ("run_state.json", '{"seconds": "abc"}', "is not as a run writes it"),
        ("run_state.json", '{"records": [1]}', "is not as a run writes it"),
        ("trainer_state.json", '{"global_step": 3, "log_history": "x"}', "is not as a run writes it"),
        ("trainer_state.json", '{"global_step": 99}', "is of another update"),
    ],
)
def test_a_checkpoint_without_a_list_is_whole_or_named(tmp_path: Path, name: str, content: Any, told: str) -> None:
    begun(tmp_path)
    _checkpoint(tmp_path, 2)
    file, said = _checkpoint(tmp_path, 3) / name, list[str]()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    run = begun(tmp_path, resume=True, say=said.append)
    assert run.update == 2 and "checkpoint-3/" in said[0]
    assert told in said[0] and "checkpoint-2 is whole: the run goes on there" in said[0]


FOLDERS = ("log.jsonl", "results.json", "held_out_best.weights", "trajectories/step_000002_rank000.parquet")


@pytest.mark.parametrize("name", [*FOLDERS, "trajectories"])
def test_a_folder_or_a_broken_link_in_a_files_place_is_named_before_the_run_goes_on(tmp_path: Path, name: str) -> None:
    begun(tmp_path)
    _checkpoint(tmp_path, 2)
    if name in FOLDERS:
        (tmp_path / name).mkdir(parents=True)
    else:
        (tmp_path / name).symlink_to("gone")
    with pytest.raises(RunFolderError, match=f"{name} is there, and is not as a run of this folder wrote it"):
        begun(tmp_path, resume=True)


def test_names_and_lines_that_only_look_like_the_runs_are_passed_over(tmp_path: Path) -> None:
    begun(tmp_path)
    _checkpoint(tmp_path, 2)
    (tmp_path / "checkpoint-²").mkdir()
    (tmp_path / "log.jsonl").write_text("[" * 10**5 + "\n")
    run = begun(tmp_path, resume=True)
    run.forget_after(run.update)
    assert run.update == 2 and (tmp_path / "log.jsonl").read_text() == ""


def test_a_random_state_of_numpy_is_no_code(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, 3)
    torch.save({"numpy": np.random.get_state(), "cpu": torch.get_rng_state()}, checkpoint / "rng_state.pth")
    assert damage(checkpoint) is None
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert "model.safetensors is cut short or damaged, and no files.json lists it" in (damage(checkpoint) or "")


def test_a_checkpoint_that_was_not_ended_is_mentioned(tmp_path: Path) -> None:
    begun(tmp_path)
    for update in (2, 10):
        _checkpoint(tmp_path, update)
    state, said = tmp_path / "checkpoint-10" / "trainer_state.json", []
    for part in _cuts(state.read_bytes().rstrip()):
        state.write_bytes(part)
        run = begun(tmp_path, resume=True, say=said.append)
        assert run.update == 2 and said.pop().startswith("checkpoint-10 was not written to its end")
    (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
    run = begun(tmp_path, resume=True, say=said.append)
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

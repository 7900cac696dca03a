"""Runs the cells of a study, each at most once, in a process that is pinned to cores of its own.

A finished cell has its row and is skipped. A broken cell is reported with the end of its log; the others continue. The
next call retries it and resumes interrupted cells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import psutil

from alignopsd_trl.commands.launch.machine import processes_of
from alignopsd_trl.commands.study.rows import ROWS, collect
from alignopsd_trl.commands.study.spec import Cell, Study, StudyError
from alignopsd_trl.common.files import full_disk_named, write_json
from alignopsd_trl.records import write_records
from alignopsd_trl.runs.owned import owned

_PERIOD = 0.1  # seconds between two looks at the cells' processes


def split_cores(processes: int) -> list[list[int]]:
    """Divides the cores that this process may use into ``processes`` contiguous parts."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if processes > len(cores):
        raise StudyError(f"processes={processes}, but there are {len(cores)} cores; use at most {len(cores)}")
    edges = [len(cores) * number // processes for number in range(processes + 1)]
    return [cores[first:last] for first, last in zip(edges[:-1], edges[1:], strict=True)]


@dataclass
class _Running:
    """A cell's process, with its exclusive cores and device."""

    cell: Cell
    process: subprocess.Popen
    place: tuple[list[int], str | None]


def run_study(study: Study, cells: Sequence[Cell]) -> dict[Path, str]:
    """Runs the unfinished cells, keeps ``rows.parquet`` up to date, and returns the errors of broken cells by folder.
    Raises `StudyError` if another study uses the same folder of cells, or for more processes than cores."""
    errors: dict[Path, str] = {}
    running: list[_Running] = []
    waiting = [cell for cell in cells if not cell.row_file.is_file()]

    def end(cell: Cell, error: str | None) -> None:
        ended = len(cells) - len(waiting) - len(running)
        if error is None:
            print(f"finished: {cell.name} ({ended} of {len(cells)} cells ended)", flush=True)
        else:
            errors[cell.folder] = error
            logs = filter(Path.is_file, [cell.folder / "log.txt"])
            print(f"BROKEN: {cell.name}: {error}", *logs, sep="\n", flush=True)
        save_rows(study, cells, errors)

    with _only_one(study.cells) as lock, _ended(running):
        free = list(zip(split_cores(study.processes), study.devices or repeat(None), strict=False))
        while waiting or running:
            for cell, source in [(one, one.source) for one in waiting if one.source]:
                if source.folder in errors:
                    waiting.remove(cell)
                    end(cell, f"needs {source.name}, which broke")
            busy = {cell.folder for cell in (*waiting, *(one.cell for one in running))}
            ready = [cell for cell in waiting if cell.source is None or cell.source.folder not in busy]
            for cell in ready[: len(free)]:
                waiting.remove(cell)
                place = free.pop(0)
                print(f"starts: {cell.name}", flush=True)
                running.append(_Running(cell, _start(cell, study, place, lock), place))
            time.sleep(_PERIOD)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                free.append(one.place)
                end(one.cell, _error(one))
    return errors


def save_rows(study: Study, cells: Sequence[Cell], errors: dict[Path, str]) -> None:
    if rows := collect(cells, errors):
        with full_disk_named(study.output, ROWS), owned("study", study.output / ROWS):
            write_records(study.output / ROWS, rows)


@contextlib.contextmanager
def _ended(running: Sequence[_Running]) -> Generator[None]:
    """Ends the processes that still run, also after an error."""
    try:
        yield
    finally:
        for one in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGTERM)
        for one in running:
            one.process.wait()


def _start(cell: Cell, study: Study, place: tuple[list[int], str | None], lock: int) -> subprocess.Popen:
    """Starts a cell's process in a group of its own. The process inherits the cores of the calling thread, and the lock
    of the cells' folder: no other study starts the same cell if this process is killed."""
    cores, device = place
    command = _prepare(cell, study)
    (cell.folder / "error.txt").unlink(missing_ok=True)
    threads = str(max(len(cores) // processes_of(command), 1))
    chosen = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    chosen |= {"CUDA_VISIBLE_DEVICES": device} if device is not None else {}
    with (cell.folder / "log.txt").open("ab") as log, _pinned(cores):
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **chosen},
            start_new_session=True,
            pass_fds=(lock,),
        )


@contextlib.contextmanager
def _pinned(cores: Sequence[int]) -> Generator[None]:
    """Pins the calling thread to cores for a while; on Linux each thread has its own affinity."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _prepare(cell: Cell, study: Study) -> list[str]:
    launcher = study.launcher if cell.trains and study.launcher else (sys.executable,)
    command = [*launcher, "-m", "alignopsd_trl.commands.study.cell", str(cell.folder)]
    content = {
        "recipe": cell.benchmark.recipe,
        "config": dict(cell.config),
        "trains": cell.trains,
        "skills": cell.skills,
        "model": str(cell.source.folder / "run") if cell.source else None,
        "command": shlex.join("python" if part == sys.executable else part for part in command),
    }
    write_json(cell.folder / "cell.json", content)
    return command


def _error(ended: _Running) -> str | None:
    """Returns the cell's own error, or the end of its log if it was killed; `None` for a cell that has its row."""
    folder, code = ended.cell.folder, ended.process.returncode
    if code == 0 and ended.cell.row_file.is_file():
        return None
    own = folder / "error.txt"
    text = (own if own.is_file() else folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = " ".join(lines) if own.is_file() else lines[-1] if lines else "no output"
    return f"{reason[:500]} (exit status {code})"


@contextlib.contextmanager
def _only_one(folder: Path) -> Generator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "a process that did not say its name"
            told = f"another study is running on the cells of {folder} ({holder}); wait for it or stop it"
            number, _, host = holder.removeprefix("process ").partition(" on ")
            if host == socket.gethostname() and number.isdigit() and not psutil.pid_exists(int(number)):
                told = f"the study of {folder} was killed ({holder}), but its cells still run: wait for them, or stop "
                told += f"the processes of alignopsd_trl.commands.study.cell {folder}"
            raise StudyError(told) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield lock.fileno()

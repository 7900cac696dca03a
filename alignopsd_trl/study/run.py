"""Runs the cells of a study: a process each, pinned to cores of its own, each at most once.

A finished cell has its row and is skipped. A broken cell is reported with the end of its log, and the others go on. The
next call tries it again and continues interrupted cells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from alignopsd_trl.launch.machine import processes_of
from alignopsd_trl.records import write_records
from alignopsd_trl.runs.files import read_json, write_json
from alignopsd_trl.study.planning import Cell
from alignopsd_trl.study.rows import ROWS, collect
from alignopsd_trl.study.spec import Study, StudyError

_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
_PERIOD = 0.5  # seconds between two looks at the cells' progress


def split_cores(processes: int) -> list[list[int]]:
    """The cores this process may use, in as many contiguous parts.

    Raises:
        StudyError: if there are fewer cores than processes.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if processes > len(cores):
        raise StudyError(f"processes={processes}, but there are {len(cores)} cores; use at most {len(cores)}")
    edges = [len(cores) * number // processes for number in range(processes + 1)]
    return [cores[first:last] for first, last in zip(edges[:-1], edges[1:], strict=True)]


def run_study(study: Study, cells: Sequence[Cell], console: Console) -> dict[Path, str]:
    """Runs what is not finished and keeps ``rows.parquet`` up to date.

    Returns:
        The errors of broken cells, by folder.

    Raises:
        StudyError: if another study runs on the same folder of cells, or for more processes than cores.
    """
    errors: dict[Path, str] = {}
    waiting = [cell for cell in cells if not cell.row_file.is_file()]
    with _only_one(study.cells) as lock, _Workers(study, lock) as workers, _bars(console) as bars:
        total = bars.add_task(study.name, total=len(cells), completed=len(cells) - len(waiting))
        running: dict[Future[str | None], Cell] = {}
        for cell in waiting:
            source = next((job for job, other in running.items() if other is cell.source), None)
            running[workers.submit(cell, source)] = cell
        shown: dict[Path, TaskID] = {}
        while running:
            ended, _ = wait(running, timeout=_PERIOD, return_when=FIRST_COMPLETED)
            for job in ended:
                cell = running.pop(job)
                _report(console, cell, job.result(), errors)
                bars.advance(total)
                if cell.folder in shown:
                    bars.remove_task(shown.pop(cell.folder))
            if ended:
                save_rows(study, cells, errors)
            _show(bars, shown, workers.busy())
    return errors


def save_rows(study: Study, cells: Sequence[Cell], errors: dict[Path, str]) -> None:
    """Writes the rows of all cells that ended, at once and whole."""
    if rows := collect(cells, errors):
        write_records(study.output / ROWS, rows)


class _Workers:
    """Threads that each start one process at a time, on cores (and devices) of their own."""

    def __init__(self, study: Study, lock: int):
        self._study, self._file = study, lock
        self._parts: queue.SimpleQueue[tuple[list[int], str | None]] = queue.SimpleQueue()
        for number, cores in enumerate(split_cores(study.processes)):
            self._parts.put((cores, study.devices[number] if study.devices else None))
        self._own = threading.local()
        self._lock = threading.Lock()
        self._processes: dict[Path, tuple[Cell, subprocess.Popen]] = {}
        self._stopped = False
        self._pool = ThreadPoolExecutor(study.processes, initializer=self._pin)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what still runs, whatever the reason for leaving."""
        with self._lock:
            self._stopped = True
            for _, process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, cell: Cell, source: Future[str | None] | None) -> Future[str | None]:
        return self._pool.submit(self._run, cell, source)

    def busy(self) -> list[Cell]:
        with self._lock:
            return [cell for cell, _ in self._processes.values()]

    def _pin(self) -> None:
        """Pins the calling thread. On Linux each thread has its own affinity, and a process inherits that of the thread
        that starts it."""
        self._own.cores, self._own.device = self._parts.get()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self._own.cores)

    def _run(self, cell: Cell, source: Future[str | None] | None) -> str | None:
        """Runs a cell and returns its error, or `None`. Sources are started before the cells that need them, so that
        waiting for one ends."""
        if cell.source is not None and source is not None and source.result() is not None:
            return f"needs {cell.source.name}, which broke"
        command = _prepare(cell, self._study)
        (cell.folder / "error.txt").unlink(missing_ok=True)
        with (cell.folder / "log.txt").open("ab") as log:
            with self._lock:
                if self._stopped:
                    return "stopped before it began"
                process = self._start(command, log)
                self._processes[cell.folder] = cell, process
            code = process.wait()
            with self._lock:
                del self._processes[cell.folder]
        if code == 0 and cell.row_file.is_file():
            return None
        return f"{_reason(cell.folder)} (exit status {code})"

    def _start(self, command: list[str], log: IO[bytes]) -> subprocess.Popen:
        """Starts a process in a group of its own. It inherits the folder's lock, so that no other study starts the same
        cell if this process is killed."""
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(processes_of(command)),
            start_new_session=True,
            pass_fds=(self._file,),
        )

    def _environment(self, processes: int) -> dict[str, str]:
        threads = str(max(len(self._own.cores) // processes, 1))
        chosen = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        if self._own.device is not None:
            chosen["CUDA_VISIBLE_DEVICES"] = self._own.device
        return {**os.environ, **chosen}


def _prepare(cell: Cell, study: Study) -> list[str]:
    launcher = study.launcher if cell.trains and study.launcher else (sys.executable,)
    command = [*launcher, "-m", "alignopsd_trl.study.cell", str(cell.folder)]
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


def _reason(folder: Path) -> str:
    """The cell's own error, or the end of its log if it was killed."""
    own = folder / "error.txt"
    text = (own if own.is_file() else folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (" ".join(lines) if own.is_file() else lines[-1] if lines else "no output")[:500]


@contextlib.contextmanager
def _only_one(folder: Path) -> Generator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "a process that did not say its name"
            raise StudyError(
                f"another study is running on the cells of {folder} ({holder}); wait for it or stop it"
            ) from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield lock.fileno()


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def _show(bars: Progress, shown: dict[Path, TaskID], busy: Sequence[Cell]) -> None:
    for cell in busy:
        if cell.folder not in shown:
            shown[cell.folder] = bars.add_task("  " + cell.name, total=None)
        done, updates = read_json(cell.folder / "progress.json") or (0, None)  # no update yet, or an evaluation
        bars.update(shown[cell.folder], completed=done, total=updates)


def _report(console: Console, cell: Cell, error: str | None, errors: dict[Path, str]) -> None:
    if error is None:
        console.print(f"finished: {cell.name}", **_PLAIN)
        return
    errors[cell.folder] = error
    log = cell.folder / "log.txt"
    console.print(f"BROKEN: {cell.name}: {error}", *([log] if log.is_file() else []), sep="\n", **_PLAIN)

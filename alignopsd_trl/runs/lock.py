"""A lock that lets one process at a time use a run's folder. It is the operating system's: a killed run leaves none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

LOCK_FILE = "run.lock"


class RunFolderError(ValueError):
    """Raised for an output folder that this run may not write to. The message gives the reason and the remedy."""


class Lock:
    """An exclusive lock on a folder, for the life of this process at most.

    Record locks are not inherited by the children of a process, so an orphaned worker of a killed run does not keep the
    folder; within one process the set of held folders stands in for them.
    """

    _held: set[Path] = set()

    def __init__(self, path: Path):
        self._path = path.resolve()
        if self._path in Lock._held:
            raise RunFolderError(f"{path} is in use by another run of this process; wait until it ends")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / LOCK_FILE).open("a+")
        except OSError as error:
            raise RunFolderError(
                f"output_dir={str(path)!r} can't be written to ({error.strerror}); choose another output_dir"
            ) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(path)
            self._file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise RunFolderError(
                    f"{path} is in use by another run ({holder}); wait until it ends, or choose another output_dir"
                ) from error
            raise RunFolderError(
                f"{path} is on a file system without locks ({error.strerror}); choose an output_dir on one that has "
                "them (mount Lustre with -o flock)"
            ) from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()
        Lock._held.add(self._path)

    def release(self) -> None:
        if self._path in Lock._held:
            Lock._held.discard(self._path)
            self._file.close()


def in_use(path: Path) -> bool:
    """Returns whether a process holds the lock of a folder. Opening the file would lose this process's own lock."""
    if path.resolve() in Lock._held:
        return True
    try:
        with (path / LOCK_FILE).open() as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    return False


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return (path / LOCK_FILE).read_text(encoding="utf-8").strip() or "unknown process"
    return "unknown process"

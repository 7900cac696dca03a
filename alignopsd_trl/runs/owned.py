"""Which files of a folder a command of ours wrote: a command replaces and removes no others.

The folder notes it in `NOTES`: name of the file -> the command, and the file's fingerprint after it was written; while
it is written, a mark in the fingerprint's place, so that a killed command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.files import fingerprint, read_json, write_json

NOTES = ".alignopsd.json"
_WRITING = "is writing"


class NotOurs(UserError):
    """Raised for a file in the place of an output that the command did not write as it is."""


def foreign(files: Iterable[Path], command: str) -> list[Path]:
    """Returns those of the files that are there and that the command did not write as they are."""
    known = ((file, notes(file.parent).get(file.name)) for file in files if file.exists())
    return [file for file, noted in known if noted not in (_noted(file, command), f"{command} {_WRITING}")]


def refuse(files: Iterable[Path], command: str) -> None:
    """Raises `NotOurs` for a file that is there and that the command did not write as it is."""
    if strange := foreign(files, command):
        more = f" ({len(strange)} such files)" if len(strange) > 1 else ""
        raise NotOurs(
            f"{strange[0]} is there, and is not as alignopsd {command} wrote it{more}; nothing is replaced: move it "
            "away, or choose another place"
        )


def begin(files: Iterable[Path], command: str) -> None:
    """Notes that the command is about to write these files; `note` must follow."""
    for file in files:
        if file.parent.is_dir():
            write_json(file.parent / NOTES, notes(file.parent) | {file.name: f"{command} {_WRITING}"})


def note(files: Iterable[Path], command: str) -> None:
    """Notes which of these files the command wrote: those that are there."""
    for file in files:
        noted = notes(file.parent)
        if file.is_file():
            noted[file.name] = _noted(file, command)
        elif noted.pop(file.name, None) is None:
            continue
        if noted:
            write_json(file.parent / NOTES, noted)
        else:
            (file.parent / NOTES).unlink()


@contextmanager
def owned(command: str, *files: Path) -> Generator[None]:
    """Lets the body write files; raises `NotOurs`, before it, where a command did not write what is there."""
    refuse(files, command)
    begin(files, command)
    try:
        yield
    finally:
        note(files, command)


def notes(folder: Path) -> dict[str, str]:
    """Returns the notes of a folder; empty without any."""
    return read_json(folder / NOTES)


def _noted(file: Path, command: str) -> str:
    return f"{command} {fingerprint(file)}" if file.is_file() else ""

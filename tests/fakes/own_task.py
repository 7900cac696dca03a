"""Helpers of tests that run the commands on a task of one's own; the task itself is the fixture `maze`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alignopsd_trl.commands.cli import main


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def fails(argv: list[str], *words: str, capsys: pytest.CaptureFixture[str], status: int = 2, lines: int = 1) -> str:
    """Runs a command that ends with a status and a message of so many lines at most, and returns the message."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == status, said
    assert all(word in said for word in words), said
    assert "Traceback" not in said and len(said.strip().splitlines()) <= lines, said
    return said


def changed(file: Path, *pairs: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text)

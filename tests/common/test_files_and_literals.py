"""What is written stays what it is: values in Python, and files where nobody could lay a link before."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from alignopsd_trl.common.files import write_text
from alignopsd_trl.common.literals import literal, with_values

VALUES = [
    "plain",
    "it's",
    'say "no"',
    "both ' and \"",
    'x"\nimport os\nos.abort()\n"',
    "C:\\new\\table\r\n",
    "\u2028 \x00 \x85",
    "größe 😀 \udcff",
    {"a": ("it's", 1), 'b"': range(1, 3)},
    slice(1, 2),
]


@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_a_value_in_python_is_that_value_and_no_code(value: Any) -> None:
    assert eval(literal(value)) == value and "\n" not in literal(value)
    source = with_values('"""Größe."""\n\n\nclass Kind:\n    name = "ß"  # größe\n    other = 1\n', {"name": value})
    found = {}
    exec(source, found)
    assert found["Kind"].name == value and found["Kind"].other == 1
    assert len(ast.parse(source).body) == 2 and "# größe" in source


def test_literals_are_in_double_quotes_where_that_needs_no_escapes() -> None:
    assert [literal(one) for one in ("a", ("a", {"b": 1}))] == ['"a"', '("a", {"b": 1})']


def test_a_name_that_is_not_assigned_once_is_refused() -> None:
    for source in ("a = 1\n", "b = 1\nb = 2\n"):
        with pytest.raises(ValueError):
            with_values(source, {"b": 3})


def test_a_file_is_replaced_through_a_name_that_nobody_can_foresee(tmp_path: Path) -> None:
    (victim := tmp_path / "victim").write_text("mine")
    (folder := tmp_path / "open").mkdir()
    (folder / f".notes.{os.getpid()}.partial").symlink_to(victim)
    write_text(folder / "notes", "theirs")
    assert (victim.read_text(), (folder / "notes").read_text()) == ("mine", "theirs")
    assert (folder / "notes").stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert sorted(one.name for one in folder.iterdir()) == [f".notes.{os.getpid()}.partial", "notes"]


def _umask() -> int:
    old = os.umask(0o022)
    os.umask(old)
    return old

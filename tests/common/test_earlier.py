"""What users wrote with a module's earlier name goes on working, and means the same module."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from alignopsd_trl.common.earlier import MOVED

BELOW = {"launch": "recipe", "own_task": "options", "study": "rows", "measure": "metrics", "analysis": "loading"}


@pytest.mark.parametrize("room", MOVED)
def test_an_earlier_name_is_the_module_itself(room: str) -> None:
    below = f".{BELOW[room]}" if room in BELOW else ""
    earlier = import_module(f"alignopsd_trl.{room}{below}")
    now = import_module(f"alignopsd_trl.{MOVED[room]}{below}")
    assert earlier is now and now.__spec__ is not None and now.__spec__.name == now.__name__


def test_a_command_line_with_an_earlier_name_runs() -> None:
    run = subprocess.run([sys.executable, "-m", "alignopsd_trl.cli"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("usage: alignopsd COMMAND")


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"alignopsd_trl\.launch\.nothing"):
        import_module("alignopsd_trl.launch.nothing")

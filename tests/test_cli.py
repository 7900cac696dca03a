"""The one command line: what it lists, what it refuses, and that it starts without heavy imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from alignopsd_trl import cli


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = "import sys; from alignopsd_trl.cli import main; main(['--help']); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.endswith("False\n") and all(f"\n  {name} " in told for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["fly"], "no command 'fly'; choose one of train"),
        (["train"], "needs the name of a recipe first: alfworld_3b"),
        (["play", "chess"], "webshop, alfworld, searchqa"),
        (["files", "ddp9"], "no shipped file 'ddp9'; there are"),
    ],
)
def test_what_it_can_not_do_is_one_line_and_code_2(argv: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and said in told and told.count("\n") == 1


def test_shipped_files_are_there(capsys: pytest.CaptureFixture) -> None:
    cli.main(["files", "fsdp2"])
    assert capsys.readouterr().out.strip().endswith("accelerate/fsdp2.yaml")
    assert {"table1_tiny", "zero3"} <= set(cli.shipped_files())


@pytest.mark.parametrize("command", ["evaluate", "view", "compare", "push", "study"])
def test_every_command_has_a_page(command: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0 and "usage:" in capsys.readouterr().out

"""How commands end that a signal stops, that nobody reads any more, or that want more memory than there is."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fakes.own_task import fails

from alignopsd_trl.common import errors
from alignopsd_trl.common.errors import WRONG, UserError
from alignopsd_trl.common.reporting import outlives_its_readers, reported

WAITS = """
import sys, time
from alignopsd_trl.commands import cli
def wait(argv):
    print("waits", flush=True)
    time.sleep(60)
cli.COMMANDS["push"] = (wait, "")
cli.main(["push"])
"""


def _stopped(number: int, *before: str, code: str = WAITS) -> tuple[int, str]:
    here = signal.signal(number, signal.SIG_DFL)  # the tests' own parent may ignore it
    try:
        command = [*before, sys.executable, "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, here)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    process.send_signal(number)
    try:
        return (process.wait(timeout=3), process.communicate()[1])
    except subprocess.TimeoutExpired:
        process.kill()
        return (0, process.communicate()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_command_that_a_signal_stops_says_so_in_one_line(number: signal.Signals) -> None:
    status, told = _stopped(number)
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert (status, told) == (128 + number, f"alignopsd push: stopped by {name}\n")


def test_a_study_that_is_stopped_ends_its_cells_and_says_how_to_go_on() -> None:
    study = "from alignopsd_trl.commands.study import __main__ as study\nstudy.main = wait"
    code = WAITS.replace('cli.COMMANDS["push"] = (wait, "")', study)
    status, told = _stopped(signal.SIGINT, code=code.replace('["push"]', '["study", "x.yaml"]'))
    assert (status, told) == (130, "alignopsd study: stopped by Ctrl-C; the same command goes on\n")


def test_a_launcher_that_stops_a_process_which_tells_an_error_costs_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Launchers stop all processes as soon as one is lost, when the others are about to say so."""

    def stopped(error: BaseException) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return WRONG

    monkeypatch.setattr(errors, "status_of", stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), reported("push"):
        raise UserError("no folder")
    assert capsys.readouterr().err.startswith("push: no folder") and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.full
def test_what_nohup_ignores_stays_ignored() -> None:
    assert _stopped(signal.SIGHUP, "nohup") == (0, "")


def _read_once(code: str) -> tuple[int, str, int]:
    """Status, errors and lines of a program whose reader leaves after the first line."""
    shell = f'"{sys.executable}" -c "{code}" | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    return done.returncode, done.stderr, done.stdout.count("\n")


def test_a_plan_that_nobody_reads_ends_quietly() -> None:
    code = (
        "import sys, alignopsd_trl.commands.cli as cli, alignopsd_trl.commands.launch.recipe as recipe\n"
        "recipe.start = lambda *given, **named: [print('x' * 80) for _ in range(5000)]\n"
        "cli.main(['train', 'webshop_tiny'])"
    )
    assert _read_once(code) == (0, "", 1)


def test_a_run_that_nobody_reads_goes_on_and_says_so_once(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from alignopsd_trl.common.reporting import outlives_its_readers\n"
        "with outlives_its_readers('nobody reads it'):\n"
        "    for number in range(5000): print('x' * 80, flush=True)\n"
        f"    pathlib.Path('{tmp_path / 'ended'}').touch()"
    )
    assert _read_once(code)[:2] == (0, "nobody reads it\n") and (tmp_path / "ended").exists()


def test_a_run_whose_output_its_task_closes_goes_on_and_says_so_once(capsys: pytest.CaptureFixture) -> None:
    with contextlib.redirect_stdout(io.StringIO()), outlives_its_readers("nobody reads it"):
        print("before")
        sys.stdout.close()
        print("after", flush=True)
        print("again", flush=True)
    assert capsys.readouterr().err == "nobody reads it\n"


def test_a_path_that_the_locale_can_not_read_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "für"
    folder.mkdir()
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for argv, place in ((["view", str(folder)], tmp_path), (["--files"], folder)):
        command = [sys.executable, "-c", "from alignopsd_trl.commands import cli; cli.main()", *argv]
        done = subprocess.run(command, cwd=place, env=plain, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "can't be read as ascii" in done.stderr and "set PYTHONUTF8=1" in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError()",
        "OSError(12, 'Cannot allocate memory')",
        'RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 67108864 bytes")',
        "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')",
    ],
)
def test_want_of_memory_is_one_sentence_that_says_what_to_lower(error: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped, reported("alignopsd train"):
        raise eval(error, {"torch": torch})  # noqa: S307 (of the list above)
    told = capsys.readouterr().err
    assert stopped.value.code == 1 and told.count("\n") == 1
    assert told.startswith("alignopsd train: not enough memory") and "lower --per_device_train_batch_size" in told
    assert ("2.00 GiB were asked for" in told) == ("2.00 GiB" in error)
    assert ("64 MiB were asked for" in told) == ("67108864" in error)


@pytest.mark.parametrize(
    "argv",
    [
        ["demonstrate", "no_such_task", "--output", "/proc/x.jsonl"],
        ["warm_start", "no_such_task", "--data", "DATA", "--output", "/proc/x"],
        ["evaluate", "--model", "tiny", "--environment", "no_such_task", "--output", "/proc/x"],
        ["measure", "--model", "tiny", "--environment", "no_such_task", "--output", "/proc/x"],
        ["measure", "webshop_tiny", "--output", "/proc/x"],
    ],
)
def test_where_nothing_can_be_written_is_said_before_anything_is_played(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "data").write_text("{}")
    argv = [str(tmp_path / "data") if word == "DATA" else word for word in argv]
    fails(argv, "nothing can be written in /proc", capsys=capsys)


@pytest.mark.parametrize("command", ["train webshop_tiny --plan --environment raising_task", "check raising_task"])
def test_code_of_a_task_that_raises_is_one_sentence_with_its_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "raising_task.py").write_text(
        "from fakes.toy_suite import suite as sound\n"
        "from dataclasses import replace\n"
        "def tasks(split):\n"
        "    raise OverflowError('of the user')\n"
        "def suite(**options):\n"
        "    return replace(sound(), tasks=tasks)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    words = "raised OverflowError: of the user", "raising_task.py, line 4"
    fails(command.split(), *words, capsys=capsys, lines=2)

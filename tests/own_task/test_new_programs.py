"""`alignopsd new --program`: repositories with mistakes, coding agents that mend them, and a small agent of ours."""

from __future__ import annotations

import difflib
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.own_task import changed, fails, rows_of

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.own_task.options import PROGRAMS, SMALL
from alignopsd_trl.commands.own_task.scaffold import TEMPLATES
from alignopsd_trl.environments import load
from alignopsd_trl.environments.loading import find_module

SHIPPED = sorted({*PROGRAMS} - {SMALL})
HERE = TEMPLATES / "program"
REPOSITORIES = SimpleNamespace(**runpy.run_path(str(HERE / "my_task_repositories.py")))
CHECK = """
import json, runpy, sys
for files in json.load(sys.stdin):
    for name in [*sys.modules]:
        if name + ".py" in files:
            del sys.modules[name]
    for name, text in files.items():
        open(name, "w").write(text)
    failed = 0
    for name in files:
        if name.startswith("test_"):
            for each, test in runpy.run_path(name).items():
                if each.startswith("test_"):
                    try:
                        test()
                    except Exception:
                        failed += 1
    print(failed)
"""


@pytest.fixture(autouse=True)
def _forgotten(forgotten: None) -> None: ...


def _repositories(count: int) -> list[Any]:
    kinds = [sorted(REPOSITORIES.MODULES), sorted(REPOSITORIES.MISTAKES)]
    return [REPOSITORIES.repository(f"some/{one}", *kinds) for one in range(count)]


def test_a_repository_fails_with_its_mistake_and_passes_with_its_patch(tmp_path: Path) -> None:
    given = []
    for one in _repositories(20):
        lines = one.files[one.file].splitlines()
        assert lines[one.line - 1] == one.wrong
        lines[one.line - 1] = one.right
        mended = one.files | {one.file: "\n".join(lines) + "\n"}
        diff = difflib.unified_diff(one.files[one.file].split("\n"), mended[one.file].split("\n"), n=0, lineterm="")
        assert one.patch.splitlines()[2:] == [*diff][2:]
        given += [one.files | one.tests, mended | one.tests]
    found = subprocess.run(
        [sys.executable, "-B", "-c", CHECK], input=json.dumps(given), capture_output=True, text=True, cwd=tmp_path
    )
    failed = [int(one) for one in found.stdout.split()]
    assert len(failed) == len(given), found.stderr
    assert all(failed[::2])
    assert not any(failed[1::2])


def test_repositories_come_from_their_numbers_and_differ() -> None:
    some = _repositories(60)
    assert some[:5] == _repositories(5)
    assert len({str(one.files) for one in some}) == 60
    assert {one.mistake for one in some} == {*REPOSITORIES.MISTAKES}
    assert {one.file for one in some} == {f"{name}.py" for name in REPOSITORIES.MODULES}


@pytest.fixture
def codex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat_policy: tuple[Path, Any]) -> Path:
    """A task that codex plays, entered; no program is on PATH."""
    folder, tokenizer = chat_policy
    tokenizer.save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    main(["new", "maze_of_code", "--program", "codex", "--model", str(folder)])
    monkeypatch.chdir("maze_of_code")
    monkeypatch.setenv("PATH", "")
    return tmp_path / "maze_of_code"


def test_a_program_that_is_not_installed_says_how_to_install_it(
    codex: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(["check", "maze_of_code"], "codex is not on PATH; install it: npm install", capsys=capsys)


def test_the_task_of_a_program_holds_kinds_out_for_the_test_split(codex: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (codex / "bin").mkdir()
    (codex / "bin" / "codex").write_text("#!/bin/sh\n")
    (codex / "bin" / "codex").chmod(0o755)
    monkeypatch.setenv("PATH", str(codex / "bin"))
    changed(codex / "maze_of_code.py", ('"train": 1000', '"train": 60'))
    suite, recipe = load("maze_of_code"), runpy.run_path("train.py")
    assert {"history": "conversation", "past_thinking": "keep"}.items() <= recipe["PRESET"].items()
    splits = {split: list(suite.tasks(split)) for split in ("train", "test")}
    assert [len(rows) for rows in splits.values()] == [60, 100]
    held = {"bank.py", "grid.py"}, {"missing return", "negation"}
    new = {
        split: [(row["hint"].split()[3] in held[0]) + (row["category"] in held[1]) for row in rows]
        for split, rows in splits.items()
    }
    assert (set(new["train"]), set(new["test"])) == ({0}, {1})
    assert suite.skill_bank == "hint"


def test_a_program_that_calls_tools_needs_a_model_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(["new", "maze", "--program", "pi", "--model", "tiny"], "--program pi calls tools", "--model", capsys=capsys)


@pytest.fixture
def mending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task of the small agent as ``alignopsd new`` leaves it, entered."""
    monkeypatch.chdir(tmp_path)
    main(["new", "maze", "--program", SMALL, "--model", "tiny"])
    monkeypatch.chdir("maze")
    return tmp_path / "maze"


def test_the_small_agents_tasks_differ_by_split_and_fail_as_they_are(mending: Path, tmp_path: Path) -> None:
    suite = load("maze")
    train, test = (list(suite.tasks(split)) for split in ("train", "test"))
    assert len(train) > 2000
    heads = [{row["broken"].partition("(")[2].partition(")")[0] for row in rows} for rows in (train, test)]
    assert not heads[0] & heads[1]
    draw = random.Random(0)
    for row in draw.sample(train, 40):
        right = row["hint"].partition("\n")[2]
        for text, passes in ((row["broken"], False), (f"{row['broken'].splitlines()[0]}\n{right}\n", True)):
            known: dict[str, Any] = {}
            exec(text, known)
            asserts = row["test"].partition("\n")[2]
            assert _passes(asserts, known) is passes, row


def _passes(text: str, known: dict[str, Any]) -> bool:
    try:
        exec(text, known)
    except AssertionError:
        return False
    return True


def test_the_small_agents_player_wins_with_the_text_and_guesses_without(mending: Path) -> None:
    from alignopsd_trl.commands.own_task.demonstrations import demonstrate
    from alignopsd_trl.commands.own_task.playing import scripted
    from alignopsd_trl.commands.own_task.task import find_task

    found = demonstrate(find_task("maze"), scripted("maze", None), episodes=2, skilled_share=0.5)
    plain, skilled = found.episodes
    assert [one.failed for one in found.episodes] == [False, False]
    assert (skilled.privileged, skilled.won, len(skilled.turns)) == (True, True, 3)
    assert (plain.privileged, len(plain.turns), len(found.rows)) == (False, 3, 6)  # a request is a whole dialogue
    said = [turn.response_text.split()[:2] for turn in plain.turns]
    assert [one[0] for one in said] == ["<think>read", f"<think>{plain.row['category']}:", "<think>mended</think>"]


@pytest.mark.full
@pytest.mark.parametrize("mends", [False, True])
def test_the_reward_is_by_the_tests_as_they_were(codex: Path, monkeypatch: pytest.MonkeyPatch, mends: bool) -> None:
    from alignopsd_trl.environments.adapters.agents.program import filled

    module: Any = find_module("maze_of_code")
    row, folder = module.row("train", 0), codex / "episode"
    folder.mkdir()
    for name, text in module.folder_of(row).items():
        (folder / name).write_text("" if name.startswith("test_") else text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    (folder / "conftest.py").write_text("collect_ignore_glob = ['*.py']\n")
    (folder / "pytest.py").write_text("main = lambda given: 0\n")
    if mends:
        found = module.made("train", 0)
        changed(folder / found.file, (f"{found.wrong}\n", f"{found.right}\n"))
    ran = subprocess.run([filled(one, row) for one in module.REWARD], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == (0 if mends else 1), ran.stdout + ran.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", SHIPPED)
def test_the_player_mends_a_repository_by_the_programs_own_shell(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat_policy: tuple[Path, Any]
) -> None:
    from alignopsd_trl.commands.own_task.demonstrations import bank_of, skills_of
    from alignopsd_trl.commands.own_task.playing import play, scripted
    from alignopsd_trl.commands.own_task.task import find_task
    from alignopsd_trl.commands.own_task.warm_start.tiny import WordCount

    monkeypatch.chdir(tmp_path)
    chat_policy[1].save_pretrained(chat_policy[0])
    main(["new", "maze", "--program", name, "--model", str(chat_policy[0])])
    monkeypatch.chdir("maze")
    if shutil.which(runpy.run_path("maze_program.py")["COMMAND"][0]) is None:
        pytest.skip(f"{name} is not on PATH")
    changed(tmp_path / "maze" / "maze.py", ('"train": 1000', '"train": 2'))
    task = find_task("maze")
    skills = skills_of(task, bank_of(task), WordCount(), 4096)
    found = play(task.suite.factory, task.rows, scripted("maze", None), skills=skills, time_limit=120)
    plain, skilled = (one.trajectory for one in found)
    assert not [one.message for one in (plain, skilled) if one.failed]
    assert (plain.privileged, plain.won) == (False, False)
    assert (skilled.privileged, skilled.won, skilled.reward) == (True, True, 1.0), skilled.turns[-1].info


@pytest.mark.full
def test_the_small_agent_is_demonstrated_warmed_up_and_trained(
    mending: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "maze", "--episodes", "4"])
    assert "WRONG" not in capsys.readouterr().out
    main(["demonstrate", "maze", "--episodes", "24"])
    assert {row["turn"] for row in rows_of(mending / "demonstrations.jsonl")} == {0, 1, 2}
    main(["warm_start", "maze", "--max_steps", "40", "--tasks", "0"])
    command = [sys.executable, "train.py", "--rounds", "1", "--panel_limit", "4", "--held_out", "4"]
    command += ["--tasks_per_round", "2", "--num_generations", "2"]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert found.returncode == 0, found.stderr[-2000:]
    assert "after" in found.stdout

"""`alignopsd new --verifiers`: a taskset of verifiers 0.4, which is in VERIFIERS_PYTHON, its harness and rewards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.own_task import changed, fails

from alignopsd_trl.commands.cli import main

TASKSET = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Saying(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def said(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.assistant_messages[-1].content or ""))


class Sayings(vf.Taskset[Saying, vf.TasksetConfig]):
    def load(self):
        yield from (Saying(Data(prompt=f"Say number {n}.", answer=f"n{n}"), self.config.task) for n in range(10))


__all__ = ["Sayings"]
"""
WORDS = "apple\nhouse\nriver\nstone\n"
played = pytest.mark.skipif("VERIFIERS_PYTHON" not in os.environ, reason="VERIFIERS_PYTHON is not set")


@pytest.fixture(autouse=True)
def _here(forgotten: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sayings.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_without_verifiers_new_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VERIFIERS_PYTHON", sys.executable)
    fails(["new", "maze", "--verifiers", "sayings"], "No module named 'verifiers'", "pip install", capsys=capsys)
    monkeypatch.setenv("VERIFIERS_PYTHON", "nowhere/python")
    fails(["new", "maze", "--verifiers", "sayings"], "nowhere/python can't be run", capsys=capsys)
    fails(["new", "maze", "--verifiers", "sayings,null"], "'null' must be NAME=VALUE", capsys=capsys)


def _play(name: str) -> list[Any]:
    from alignopsd_trl.commands.own_task.demonstrations import bank_of, skills_of
    from alignopsd_trl.commands.own_task.playing import play, scripted
    from alignopsd_trl.commands.own_task.task import find_task
    from alignopsd_trl.commands.own_task.warm_start.tiny import WordCount

    task = find_task(name)
    skills = skills_of(task, bank_of(task), WordCount(), 4096)
    found = play(task.suite.factory, task.rows[:2], scripted(name, None), skills=skills, time_limit=120)
    assert not [one.trajectory.message for one in found if one.trajectory.failed]
    return [one.trajectory for one in found]


@played
@pytest.mark.full
def test_what_a_taskset_needs_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    fails(["new", "maze", "--verifiers", "sayings,harness=codex"], "containers, for CodexHarness", capsys=capsys)
    fails(["new", "maze", "--verifiers", "sayings", "--model", "tiny"], "calls tools", "harness=null", capsys=capsys)
    fails(["new", "maze", "--verifiers", "no_such"], "'no_such' not found", capsys=capsys)


@played
@pytest.mark.full
def test_a_taskset_is_played_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    main(["new", "maze", "--verifiers", "sayings,harness=null", "--model", "tiny"])
    monkeypatch.chdir("maze")
    plain, skilled = _play("maze")
    assert [one.reward for one in (plain, skilled)] == [0.0, 1.0]  # by verifiers
    assert [len(one.turns) for one in (plain, skilled)] == [1, 1]
    changed(Path("train.py"), ("episodes=64", "episodes=4"), ('(model="tiny")', '(model="tiny", max_steps=20)'))
    command = [sys.executable, "train.py", "--rounds", "1", "--panel_limit", "2"]
    command += ["--tasks_per_round", "2", "--num_generations", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "after" in ran.stdout


@played
@pytest.mark.full
def test_the_harness_bash_runs_the_policys_commands(
    monkeypatch: pytest.MonkeyPatch, chat_policy: tuple[Path, Any]
) -> None:
    chat_policy[1].save_pretrained(chat_policy[0])
    main(["new", "maze", "--verifiers", "sayings", "--model", str(chat_policy[0])])
    monkeypatch.chdir("maze")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    Path("maze_player.py").write_text(
        "def play(view, environment, skill, draw):\n"
        "    said = [one['content'] for one in view.context.now.messages if one['role'] == 'tool']\n"
        "    told = skill.rpartition(' ')[2]\n"
        "    call = f\"<action>bash(command='echo {told} $HF_TOKEN')</action>\"\n"
        "    return (said[0].strip() or 'nothing') if said else call\n"
    )
    _, skilled = _play("maze")
    assert (skilled.reward, len(skilled.turns)) == (1.0, 2)
    assert "hf_secret" not in skilled.turns[1].response_text
    assert [turn.info["follows"] for turn in skilled.turns] == [None, 0]


@played
@pytest.mark.full
def test_a_game_of_textarena_goes_on_by_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chat_policy: tuple[Path, Any]
) -> None:
    words = tmp_path / "nltk_data" / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text(WORDS)
    (words / "README").write_text("")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk_data"))
    main(["new", "maze", "--verifiers", "textarena,game=Hangman-v0,harness=null", "--model", "tiny"])
    monkeypatch.chdir("maze")
    Path("maze_player.py").write_text(
        "def play(view, environment, skill, draw):\n"
        "    asked = view.context.now.messages\n"
        "    return f'[{\"estro\"[len(asked) // 2 % 5]}]'\n"
    )
    for one in _play("maze"):
        assert len(one.turns) > 2

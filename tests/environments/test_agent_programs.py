"""Agents from a command line: one path for siblings, nothing of ours in their reach, nothing left of them."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.agent_play import exact, played
from huggingface_hub import constants as hub

from alignopsd_trl.environments.adapters import AgentEnvironment, Program, tests_pass
from alignopsd_trl.environments.adapters.agents import apart
from alignopsd_trl.turns import StopReason, Trajectory

ASKS = """
import json, os, subprocess, sys, threading, time, urllib.error, urllib.request
from pathlib import Path
messages = []
def ask(text):
    messages.append({"role": "user", "content": text})
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
    return messages[-1]["content"]
"""
FIXED = "def add(a, b):\n    return a + b\n"
FILES = {
    "calc.py": FIXED.replace("+", "-"),
    "test_calc.py": "from calc import add\n\n\ndef test():\n    assert add(1, 2) == 3\n",
}
ROWS = [{"task_id": "one", "task": "Mend calc.py."}]


@pytest.fixture(params=["apart", "together"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "apart" and apart.why_together():
        pytest.skip(apart.why_together())
    if request.param == "together":
        monkeypatch.setattr(apart, "why_together", lambda: "not allowed here")
    return str(request.param)


def program(code: str, reward: Any = lambda folder: 1.0, **given: Any) -> Program:
    return Program([sys.executable, "-c", ASKS + code, "{task}"], reward=reward, files=lambda row: FILES, **given)


def play(
    code: str, reward: Any = lambda folder: 1.0, say: Any = None, play: Any = played, **given: Any
) -> list[Trajectory]:
    options = {name: given.pop(name) for name in ("max_turns", "last_words") if name in given}
    rows, siblings = given.pop("rows", ROWS), given.pop("siblings", 2)
    environment = AgentEnvironment(program(code, reward, **given), format="text", **options)
    return play(environment, rows, say, siblings=siblings, limit=20.0)


def info(one: Trajectory) -> Any:
    return one.turns[-1].info


def left(mark: str) -> list[int]:
    """Processes whose command holds a mark."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if mark in " ".join(one.info["cmdline"] or ()) and one.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(one.pid)
    return [pid for pid in found if pid != os.getpid()]


def test_a_program_mends_a_file_and_a_command_rewards_it(way: str) -> None:
    code = 'Path("calc.py").write_text(ask(f"{sys.argv[1]} You are in {os.getcwd()}, at home in {Path.home()}"))'
    reward = ["grep", "{wanted}", "calc.py"]
    rows = [{**ROWS[0], "wanted": "a + b"}]
    found = play(code, reward, lambda prompt: FIXED if "Mend calc.py" in prompt else "", exact, rows=rows)
    assert [(one.stop, one.reward, one.won, one.score) for one in found] == [(StopReason.DONE, 1.0, True, 1.0)] * 2
    assert all(info(one)["status"] == 0 and info(one)["tested"] == "    return a + b\n" for one in found)
    wrong = play(code, reward, lambda prompt: "def add(a, b): pass", rows=rows)
    assert [(one.reward, one.won, one.failed) for one in wrong] == [(0.0, False, False)] * 2


@pytest.mark.full
@pytest.mark.parametrize("fixed", [True, False])
def test_the_tests_of_a_folder_reward_it(way: str, fixed: bool) -> None:
    (one,) = play(f'ask("Go."); {fixed} and Path("calc.py").write_text({FIXED!r})', tests_pass, siblings=1)
    assert (one.reward, one.won, one.failed) == (float(fixed), fixed, False), one.message
    assert f"1 {'passed' if fixed else 'failed'}" in info(one)["tested"]


def test_siblings_read_one_path_and_write_it_in_their_own_folder(way: str) -> None:
    code = """
path = ask("Where? " + os.getcwd())
Path(path).write_text("here")
ask(f"Done: {path} {Path(path).exists()}")
"""
    folders: list[Path] = []

    def reward(folder: Path) -> float:
        folders.append(folder)
        return float((folder / "new.txt").read_text() == "here")

    path = str(apart.ROOT / "task")
    found = play(code, reward, lambda prompt: path + "/new.txt", exact)
    assert [one.reward for one in found] == [1.0, 1.0], found
    assert found[0].turns[1].prompt_ids == found[1].turns[1].prompt_ids and len({*folders}) == 2
    assert not any(one.exists() for one in folders)


def test_nothing_secret_is_in_a_programs_reach(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret-token")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(hub, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored_tokens"))
    kept = (".netrc", ".codex/auth.json", "stored_tokens")
    (tmp_path / ".codex").mkdir()
    for name in kept:
        (tmp_path / name).write_text("secret-token")
    code = """
ask("Go.")
said = repr(dict(os.environ)) + Path.home().name
for place in Path("/proc").glob("[0-9]*/environ"):
    try:
        said += place.read_bytes().decode(errors="replace")
    except OSError:
        pass
kept = "".join(Path(os.environ["REAL"], name).read_text() for name in os.environ["KEPT"].split())
print("TOKEN" if "secret-token" in repr(dict(os.environ)) else "clean", "PROC" if "secret-token" in said else "clean")
print(kept or "empty", [*Path.home().iterdir()])
"""
    (one,) = play(code, siblings=1, env={"REAL": str(tmp_path), "KEPT": " ".join(kept)})
    said = info(one)["output"]
    assert said.startswith("clean") and f"{'home' if way == 'together' else apart.ROOT / 'home'}" in said
    if way == "apart":
        assert said.startswith("clean clean") and "\nempty" in said, said


HOSTILE = """
import signal
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
def away():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
            os.execvp(sys.executable, [sys.executable, "-c", code, "MARK"])
        os._exit(0)
away(); away()
ask("Go.")
"""


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", id="ends"),
        pytest.param("time.sleep(99)", id="hangs", marks=pytest.mark.full),
        pytest.param("ask('More.'); ask('And more.')", id="too many turns"),
    ],
)
def test_no_process_outlives_its_episode(way: str, end: str) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    limits = {"time_limit": 4.0 if "sleep" in end else 60.0, "max_turns": 2}
    found = play(HOSTILE.replace("MARK", mark) + end, **limits)
    assert [(one.reward, one.failed) for one in found] == [(1.0, False)] * 2, found[0].message
    assert not left(mark)


def test_a_program_that_kills_its_parent_leaves_nothing(way: str) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    found = play(HOSTILE.replace("MARK", mark) + "os.kill(os.getppid(), 9); time.sleep(1)", siblings=1)
    assert found[0].failed == (way == "together") and not left(mark), found[0].message


@pytest.mark.full
def test_a_program_has_its_own_time_to_start_and_may_close_its_output(way: str) -> None:
    code = 'time.sleep(1.5); os.closerange(0, 3); ask("Go."); time.sleep(0.5)'
    environment = AgentEnvironment(program(code), format="text")
    began = psutil.Process().cpu_times()
    found = played(environment, ROWS, limit=1.0)
    spent = psutil.Process().cpu_times()
    assert [(one.reward, one.failed) for one in found] == [(1.0, False)] * 2, found[0].message
    assert spent.children_user - began.children_user < 2.0


def test_a_program_ends_with_an_environment_that_is_closed(way: str) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    environment = AgentEnvironment(program(HOSTILE.replace("MARK", mark) + "time.sleep(99)"), format="text")
    environment.reset(**ROWS[0])
    environment.answer("Go on.")
    until = time.monotonic() + 20
    while len(left(mark)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    environment.close()
    assert not left(mark)


@pytest.mark.full
def test_output_without_end_is_cut_to_its_own(way: str) -> None:
    before = psutil.Process().memory_info().rss
    (one,) = play('ask("Go.")\nwhile True: sys.stdout.write("x" * (1 << 20))', siblings=1, time_limit=4.0)
    assert info(one)["status"] is None and {*info(one)["output"]} == {"x"} and len(info(one)["output"]) <= 1 << 13
    assert psutil.Process().memory_info().rss - before < 1 << 27


def test_whatever_a_program_leaves_in_its_folder_is_removed(
    way: str, tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "ROOT", tmp_path / "root")  # where no other run of this user's plays
    (tmp_path / "kept").write_text("here")
    code = """
ask("Go.")
os.symlink(sys.argv[1], "elsewhere")
os.mkdir("closed")
Path("closed", "file").write_text("x")
os.chmod("closed", 0)
for _ in range(1500):
    os.mkdir("deep" * 50)
    os.chdir("deep" * 50)
"""
    (one,) = play(code, rows=[{**ROWS[0], "task": str(tmp_path)}], siblings=1)
    assert (one.reward, one.failed, caplog.text) == (1.0, False, ""), one.message
    assert not [*(apart.ROOT / "episodes").iterdir()] and (tmp_path / "kept").exists()


@pytest.mark.full
def test_too_many_processes_end_a_program(way: str) -> None:
    mark = f"mark-{time.monotonic_ns()}"
    many = 'for _ in range(700): os.fork() or os.execvp("sleep", ["sleep", "99.MARK"])'.replace("MARK", mark[-6:])
    (one,) = play(f'ask("Go.")\n{many}\ntime.sleep(99)', siblings=1)
    assert "processes at once" in info(one)["output"] and not left(f"99.{mark[-6:]}")


@pytest.mark.full
def test_two_hundred_requests_at_once_are_turns_up_to_the_limit(way: str) -> None:
    code = """
def one(number):
    try:
        body = json.dumps({"messages": [{"role": "user", "content": f"Go {number}."}]}).encode()
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        urllib.request.urlopen(urllib.request.Request(url, body)).read()
    except urllib.error.HTTPError:
        pass
ask("Begin.")
threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
[one.start() for one in threads]
[one.join() for one in threads]
"""
    (one,) = play(code, siblings=1, max_turns=20)
    assert (one.stop, len(one.turns), one.reward) == (StopReason.TURN_LIMIT, 20, 1.0), one.message


@pytest.mark.parametrize(
    "code, told",
    [
        (
            'print("no settings"); sys.exit(3)',
            "without a turn python.* ended with status 3; its output ends: 'no settings",
        ),
        ('ask("Go."); os.kill(os.getpid(), 11)', "ended with status 139"),
        ('ask("Go."); messages[0]["role"] = "none"; ask("x")', "status 1.*was refused.*messages.0..role"),
    ],
)
def test_a_program_that_breaks_says_how(code: str, told: str) -> None:
    (one,) = play(code, siblings=1)
    assert one.failed
    assert re.search(told, one.message, re.DOTALL), one.message

"""Tasks for agents that others made: what `alignopsd new --program` and `--verifiers` write for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.own_task.options import SMALL
from alignopsd_trl.commands.own_task.worlds import HELD_OUT, Written, few

CONVERSES = """
    "history": "conversation",  # an episode is one row, as far as the program only adds messages
    "past_thinking": "keep","""
SMALLER = {'"max_prompt_length": 512': '"max_prompt_length": 1024', "config=START)": "config=START, episodes=256)"}
FEWER = SMALLER | {"config=START)": "config=START, episodes=64)"}  # of some seconds each
ASKS = Path(__file__).parent / "templates" / "verifiers" / "my_task_episode.py"
NONE = "No module named 'verifiers'"
INSTALL = (
    "; it needs an environment of its own: python3 -m venv verifiers_env && verifiers_env/bin/pip install "
    "verifiers==0.4.0 uv, then VERIFIERS_PYTHON=verifiers_env/bin/python alignopsd new ..."
)
TASKS, TURNS = 160, 16  # of a taskset at most, and of an episode


def asked_program(name: str) -> Written:
    """Returns what the templates become for a program of `PROGRAMS`."""
    return Written(changes=_conversing() | (SMALLER if name == SMALL else {}), part=name)


def _conversing() -> dict[str, str]:
    lines = ('"panel_limit": 100,', '"panel_limit": 40,')
    return {line: f"{line}{CONVERSES}{HELD_OUT}" for line in lines}


def asked_taskset(asked: str) -> Written:
    """Asks verifiers for a taskset's tasks. Raises `ValueError` if it has none, or needs what is not here.

    Args:
        asked: its id and its settings, ``ID,NAME=VALUE,...``; ``harness=ID`` names a harness of verifiers.
    """
    name, *pairs = asked.split(",")
    given = dict[str, str]()
    for pair in pairs:
        key, _, given[key.strip()] = pair.partition("=")
        if not key.strip() or not given[key.strip()]:
            raise ValueError(f"--verifiers {asked!r}: {pair!r} must be NAME=VALUE, such as harness=null")
    harness = given.pop("harness", None)
    told: dict[str, Any] = {"taskset": {"id": name, **given}, "harness": harness, "runtime": "subprocess"}
    told["turns"] = TURNS
    python = str(Path(os.environ.get("VERIFIERS_PYTHON", sys.executable)).expanduser().absolute())
    found = _described(python, told)
    count, hints = len(found["tasks"]), all(one.get("answer") is not None for one in found["tasks"])
    if count < 2:
        raise ValueError(f"--verifiers {name}: the taskset has {count} tasks; two are needed, to train and to test")
    if found["containers"]:
        if subprocess.run(["sh", "-c", "docker info"], capture_output=True).returncode:
            raise ValueError(f"--verifiers {name} needs containers, for {found['containers']}: no docker answers here")
        told["runtime"] = "docker"
    tests = max(1, count // 5)
    splits = {"train": range(count - tests), "test": range(count - tests, count)}
    values = {"PYTHON": python, "ASKED": told, "SPLITS": splits, "FORMAT": "text" if found["chats"] else "native"}
    values |= {"HINT": "hint" if hints else ""}
    return Written(
        values,
        _conversing() | FEWER | few(count - tests),
        files={"my_task_tasks.json": json.dumps(found["tasks"], indent=1)},
    )


def _described(python: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the script of the templates says of a taskset."""
    try:
        ran = subprocess.run([python, ASKS, json.dumps(told), str(TASKS)], capture_output=True, text=True)
    except OSError as error:
        raise ValueError(f"VERIFIERS_PYTHON={python} can't be run: {error}") from None
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise ValueError(f"--verifiers {told['taskset']['id']}: {python} says {why}{INSTALL if NONE in why else ''}")
    return json.loads(ran.stdout.splitlines()[-1])

"""The task my_task: mend small repositories whose tests fail. A coding agent plays, as its makers ship it."""

import json
import os
import shutil
import sys
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

from my_task_program import COMMAND, ENV, HOME, INSTALL
from my_task_repositories import MISTAKES, MODULES, repository

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import AgentEnvironment, Program, tests_pass

TASK = "A test fails here (python -m pytest). Mend the line that is wrong, and leave the tests as they are."
NUMBERS = {"train": 1000, "test": 100}  # of repositories, by split
HELD_OUT = ("bank", "grid", "missing return", "negation")  # modules and mistakes of the test split alone
TURNS = 30
PUT_BACK = """import json, sys
for name, text in json.loads(sys.argv.pop(1)).items():
    open(name, "w").write(text)
import pytest
sys.exit(pytest.main(sys.argv[1:]))"""
REWARD = [sys.executable, "-I", "-c", PUT_BACK, "{tests}", *tests_pass[3:], "--noconftest", "-c", os.devnull]
"""Passes by the tests as they were. Settings of pytest that the program leaves behind don't count."""


@cache
def made(split, number):
    modules, mistakes = ([one for one in some if one not in HELD_OUT] for some in (MODULES, MISTAKES))
    if split == "test":  # of each pair one is new
        new = number % 2
        modules = [one for one in MODULES if one in HELD_OUT] if new else modules
        mistakes = mistakes if new else [one for one in MISTAKES if one in HELD_OUT]
    return repository(f"{split}/{number}", modules, mistakes)


def row(split, number):
    found = made(split, number)
    text = f"Line {found.line} of {found.file} must be:\n{found.right}"
    named = {"task_id": f"my_task/{split}/{number}", "category": found.mistake, "task": TASK, "hint": text}
    return named | {"split": split, "number": number, "patch": found.patch, "tests": json.dumps(found.tests)}


def folder_of(row):
    found = made(row["split"], row["number"])
    return found.files | found.tests


def suite(**options):
    if shutil.which(COMMAND[0]) is None:
        raise ValueError(f"the program {COMMAND[0]} is not on PATH; install it: {INSTALL}")
    if find_spec("pytest") is None:
        raise ValueError("pytest decides what is won; install it: pip install pytest")
    python = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    python["PYTHONDONTWRITEBYTECODE"] = "1"  # a file that changes twice in a second would be run as it was
    program = Program(COMMAND, files=folder_of, reward=REWARD, home=HOME, env=ENV | python)
    environment = AgentEnvironment(program, sampling="ignore", max_turns=TURNS)
    return Suite.of_rows(
        "my_task",
        environment,
        lambda split: list(map(partial(row, split), range(NUMBERS[split]))),
        categories=tuple(MISTAKES),
        description={"program": COMMAND[0], "numbers": NUMBERS, "held_out": HELD_OUT},
        skill_bank="hint",
    )

"""The task my_task: mend a small module whose test fails. The agent is a program with a shell (my_task_agent.py)."""

import os
import sys
from functools import cache
from itertools import permutations
from pathlib import Path
from random import Random

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import AgentEnvironment, Program

FUNCTIONS = {"total": "+", "left": "-", "area": "*", "share": "//", "rest": "%"}  # a name tells its operator
NOUNS = "apples boxes cups days eggs friends hours jars pages rooms shelves trees".split()
FILES = ("farm", "school", "shop")
TURNS = 6


@cache
def rows(split):
    """One row for each function, wrong operator and pair of nouns. Every fifth pair is of the test split alone."""
    pairs = [pair for one, pair in enumerate(permutations(NOUNS, 2)) if (one % 5 == 0) == (split == "test")]
    wrong = [(name, other) for name, right in FUNCTIONS.items() for other in FUNCTIONS.values() if other != right]
    made = [row(*one, *pair, FILES[place % 3]) for place, pair in enumerate(pairs) for one in wrong]
    Random(0).shuffle(made)
    return [{"task_id": f"my_task/{split}/{place}", **one} for place, one in enumerate(made)]


def row(name, wrong, first, second, file):
    head, right = f"def {name}({first}, {second}):\n", f"    return {first} {FUNCTIONS[name]} {second}"
    given = Random(f"{name} {first} {second}")
    pairs = [(given.randint(5, 20), given.randint(2, 9)) for _ in range(4)] + [(7, 3)]  # 7 and 3 tell all apart
    known = {}
    exec(head + right, known)
    tests = "".join(f"assert {name}{one} == {known[name](*one)}\n" for one in pairs)
    return {
        "category": name,
        "task": f"python test.py fails. Mend {file}.py.",
        "file": f"{file}.py",
        "broken": f"{head}    return {first} {wrong} {second}\n",
        "test": f"from {file} import {name}\n\n{tests}",
        "hint": f"Line 2 of {file}.py must be:\n{right}",
    }


def folder_of(row):
    return {row["file"]: row["broken"], "test.py": row["test"]}


def suite(**options):
    here = Path(__file__).parent
    program = Program(
        [sys.executable, str(here / "my_task_agent.py"), str(TURNS), "{task}"],
        files=folder_of,
        reward=[sys.executable, "-c", "{test}"],  # as it was, whatever became of test.py
        env={
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file that changes twice in a second would be run as it was
        },
    )
    return Suite.of_rows(
        "my_task",
        AgentEnvironment(program, format="text", max_turns=TURNS),
        rows,
        categories=tuple(FUNCTIONS),
        description={"functions": FUNCTIONS, "nouns": NOUNS},
        skill_bank="hint",
    )

"""Coding agents as their makers ship them, each with the lines that let the policy answer it. `.ci/programs` installs
them in the folder that PROGRAMS names; claude is found on PATH."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.own_task.scaffold import TEMPLATES
from alignopsd_trl.environments.adapters import Program, tests_pass

HERE = Path(os.environ.get("PROGRAMS", "not_there"))
NODE, PYTHON = HERE / "node" / "node_modules" / ".bin", HERE / "python" / "bin"

SHIPPED = {"codex": NODE, "pi": NODE, "opencode": NODE, "mini-swe-agent": PYTHON, "claude": Path()}
"""Programs for which `alignopsd new --program` writes a task, and where they are."""


def as_written(name: str) -> dict[str, Any]:
    """Returns the lines of a program as a user gets them."""
    found = runpy.run_path(str(TEMPLATES / "program" / name / "my_task_program.py"))
    first, *rest = found["COMMAND"]
    return {"command": [SHIPPED[name] / first, *rest], "home": found["HOME"], "env": found["ENV"]}


PROGRAMS: dict[str, dict[str, Any]] = {name: as_written(name) for name in SHIPPED} | {
    "qwen": {
        "command": [NODE / "qwen", "--yolo", "-p", "{task}"],
        "home": {".qwen/settings.json": json.dumps({"privacy": {"usageStatisticsEnabled": False}})},
        "env": {"OPENAI_MODEL": "policy"},
    },
    "anthropic": {"command": [PYTHON / "python", Path(__file__).with_name("by_anthropic.py"), "{task}"]},
}


def coding(name: str, files: Any, **more: str) -> Program:
    """Makes a coding agent, rewarded by pytest.

    Args:
        more: variables.
    """
    given = PROGRAMS[name]
    command, env = [str(one) for one in given["command"]], given.get("env", {}) | more
    return Program(command, home=given.get("home"), env=env, files=files, reward=tests_pass)

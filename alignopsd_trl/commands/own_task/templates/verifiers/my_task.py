"""The task my_task: a taskset of verifiers. Its harness asks the policy, and its rewards are the episode's."""

import json
import os
from pathlib import Path

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import AgentEnvironment, Program

PYTHON = "python"  # of the environment that has verifiers
ASKED = {"taskset": {"id": ""}, "harness": None, "runtime": "subprocess", "turns": 16}
SPLITS = {"train": range(0, 1), "test": range(0, 1)}  # of the tasks in my_task_tasks.json
FORMAT = "native"
HINT = "hint"
HERE = Path(__file__).parent
PASSED = ("PYTHONPATH", "UV_CACHE_DIR", "UV_SYSTEM_CERTS", "UV_INDEX_URL", "SSL_CERT_FILE", "HTTPS_PROXY", "NLTK_DATA")


def ended(folder):
    """The reward of verifiers, which failed where there is none."""
    found = json.loads((folder / "episode.json").read_text())
    if found["errors"]:
        raise RuntimeError(f"verifiers: {found['errors'][-1]}")
    return found["reward"]


def row(number, task):
    named = {"task_id": f"my_task/{number}", "task": json.dumps(task)}
    return named | ({"hint": f"The answer is {task['answer']}"} if HINT else {})


def suite(**options):
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    env.setdefault("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))  # of the harness's own packages
    env["PATH"] = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])  # uv may be there
    program = Program(
        [PYTHON, str(HERE / "my_task_episode.py"), json.dumps(ASKED)],
        files=lambda row: {"task.json": row["task"]},
        reward=ended,
        env=env,
    )
    environment = AgentEnvironment(program, format=FORMAT, sampling="ignore", max_turns=ASKED["turns"])
    tasks = json.loads((HERE / "my_task_tasks.json").read_text())
    return Suite.of_rows(
        "my_task",
        environment,
        lambda split: [row(number, tasks[number]) for number in SPLITS[split]],
        description={"taskset": ASKED["taskset"]},
        skill_bank=HINT,
    )

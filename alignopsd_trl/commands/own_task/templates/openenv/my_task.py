"""The task: what an OpenEnv server offers."""

from openenv.core import GenericEnvClient

from alignopsd_trl.environments import Suite
from alignopsd_trl.environments.adapters import OpenEnvEnvironment

ADDRESS = "http://localhost:8000"


def connect():
    return GenericEnvClient(base_url=ADDRESS)


def rows(split):
    first = {"train": 0, "test": 10_000}[split]
    asked = [{"role": "user", "content": "Do what the environment asks for."}]
    numbers = range(first, first + 64)  # the server's reset() gets the number, and a seed that is made of the task_id
    return [{"task_id": f"my_task/{split}/{number}", "prompt": asked, "number": number} for number in numbers]


def suite(**options):
    return Suite.of_rows(
        "my_task",
        OpenEnvEnvironment(connect, reward="sum", max_turns=10),
        rows,
        description={"address": ADDRESS},
        skill_bank="my_task_skills:hint",
    )

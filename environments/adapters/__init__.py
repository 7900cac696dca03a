"""Adapters that let foreign programs play here unchanged: TRL's tool classes, clients of OpenEnv, agents."""

from alignopsd_trl.environments.adapters.adapted import AdaptedEnvironment
from alignopsd_trl.environments.adapters.agents import AgentEnvironment, Program, Served, tests_pass
from alignopsd_trl.environments.adapters.openenv import OpenEnvEnvironment
from alignopsd_trl.environments.adapters.recognition import as_environment, check_rows
from alignopsd_trl.environments.adapters.rows import row_id, with_task_ids
from alignopsd_trl.environments.adapters.tools import ToolEnvironment

__all__ = [
    "AdaptedEnvironment",
    "AgentEnvironment",
    "OpenEnvEnvironment",
    "Program",
    "Served",
    "ToolEnvironment",
    "as_environment",
    "check_rows",
    "row_id",
    "tests_pass",
    "with_task_ids",
]

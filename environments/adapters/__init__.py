"""Environments that were written for others play here as they are: TRL's tool classes, and clients of OpenEnv."""

from environments.adapters.adapted import AdaptedEnvironment
from environments.adapters.openenv import OpenEnvEnvironment
from environments.adapters.recognition import as_environment, check_rows
from environments.adapters.rows import row_id, with_task_ids
from environments.adapters.tools import ToolEnvironment

__all__ = [
    "AdaptedEnvironment",
    "OpenEnvEnvironment",
    "ToolEnvironment",
    "as_environment",
    "check_rows",
    "row_id",
    "with_task_ids",
]

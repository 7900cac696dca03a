"""Tools for a new task: its scaffold, its check, demonstrations and a first policy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignopsd_trl.own_task.check.task_check import check_task
    from alignopsd_trl.own_task.first_policy import first_policy

_HOMES = {"check_task": "check.task_check", "first_policy": "first_policy"}
__all__ = ["check_task", "first_policy"]


def __getattr__(name: str) -> Any:
    """Imports a name at its first use, since command lines are parsed before PyTorch is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module 'alignopsd_trl.own_task' has no attribute {name!r}")
    return getattr(import_module(f"alignopsd_trl.own_task.{_HOMES[name]}"), name)

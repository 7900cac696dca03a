"""Tools for a new task: its scaffold, its check, demonstrations and a first policy."""

from typing import Any


def check_task(task: str, **options: Any) -> Any:
    """Is `check.task_check.check_task`; the test that an earlier ``alignopsd new`` wrote imports it from here."""
    from alignopsd_trl.commands.own_task.check import task_check

    return task_check.check_task(task, **options)

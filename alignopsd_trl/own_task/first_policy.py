"""A policy made on the spot: demonstrations of the scripted player, and a warm start of `tiny` on them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from alignopsd_trl.launch.errors import reported, setup

HELP = ("-h", "--help", "--help_all")


def first_policy(task: str, folder: str | Path, argv: Sequence[str] | None = None) -> None:
    """Makes the policy of a task in a folder, unless there is one, or the command line gives another model or only
    asks for help.

    Args:
        task: as in `alignopsd check TASK`.
        folder: of the policy.
        argv: the recipe's command line; the process's own by default.
    """
    given = [word.partition("=")[0] for word in (sys.argv[1:] if argv is None else argv)]
    if (Path(folder) / "config.json").is_file() or {*HELP, "--model", "--model_name_or_path"} & set(given):
        return
    with reported(task, quietly=argv is None, resumes=None), setup():
        if "--plan" in given or int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                f"there is no policy in {folder} yet; make it with alignopsd demonstrate {task} and alignopsd "
                f"warm_start {task}, or start the recipe once as one process"
            )
        _make(task, Path(folder))


def _make(name: str, folder: Path) -> None:
    from alignopsd_trl.own_task.demonstrations import demonstrate
    from alignopsd_trl.own_task.options import SCRIPTED, WarmStartConfig
    from alignopsd_trl.own_task.players import Scripted, scripted
    from alignopsd_trl.own_task.task import find_task
    from alignopsd_trl.own_task.warm_start import warm_start

    task = find_task(name)
    print(f"{folder} holds no policy: the scripted player demonstrates, a tiny one learns from it", flush=True)
    found = demonstrate(task, Scripted(scripted(task.name), random.Random(0)), episodes=SCRIPTED)
    print(found.told(), flush=True)
    warm_start(found.rows, folder, WarmStartConfig())

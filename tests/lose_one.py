"""Run by `test_lost_launch.py` under a launcher, in each process: a recipe's script, one process of which is killed.

``LOST`` says which and when: ``rank:name:count``, the count-th call of one of `PLACES` on that rank.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from typing import Any

PLACES = {
    "sampling": ("alignopsd_trl.rollout.driver", "Lockstep", "advance"),
    "crediting": ("alignopsd_trl.turns", "TurnBatch", "of"),
    "update": ("alignopsd_trl.trainer", "AlignOPSDTrainer", "training_step"),
    "saving": ("alignopsd_trl.trainer", "AlignOPSDTrainer", "_save_rng_state"),
    "evaluation": ("alignopsd_trl.trainer", "AlignOPSDTrainer", "evaluate_panel"),
}


def lose(name: str, count: int) -> None:
    """Kills this process in a call of a function."""
    module, owner, function = PLACES[name]
    place = importlib.import_module(module)
    place = getattr(place, owner) if owner else place
    inner, calls = getattr(place, function), 0

    def call(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*given, **named)

    setattr(place, function, call)


if __name__ == "__main__":
    rank, _, rest = os.environ.get("LOST", "").partition(":")
    if rank == os.environ["RANK"]:
        name, _, count = rest.partition(":")
        lose(name, int(count))
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")

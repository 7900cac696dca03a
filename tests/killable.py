"""Run by `test_kill.py`: imports everything once, then forks a whole recipe's run for each line that it is given.

A line is JSON: the command line, and after how many events the run kills itself. An event is a step of the run (a
response is sampled, a response scored, a gradient computed, a panel played) or a change in its output folder; the
signal falls a few milliseconds later, so that it hits what goes on in between as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
STEPS = (
    ("alignopsd_trl.sampling.trl_engine", "EngineSampler", "respond"),
    ("alignopsd_trl.sampling.loop", "LoopSampler", "respond"),
    ("alignopsd_trl.scoring.trl_scoring", "PolicyScorer", "plain"),
    ("alignopsd_trl.trainer", "AlignOPSDTrainer", "training_step"),
    ("alignopsd_trl.trainer", "AlignOPSDTrainer", "_save_checkpoint"),
    ("alignopsd_trl.trainer", "AlignOPSDTrainer", "save_model"),
    ("alignopsd_trl.trainer", "AlignOPSDTrainer", "evaluate_panel"),
)


class Countdown:
    def __init__(self, folder: str, last: int | None, signal_number: int, delay: float):
        self.folder, self.last, self.signal, self.delay = folder, last, signal_number, delay
        self.count = 0

    def event(self) -> None:
        self.count += 1
        if self.count == self.last:
            threading.Timer(self.delay, os.kill, (os.getpid(), self.signal)).start()

    def audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in CHANGES and str(arguments[0]).startswith(self.folder):
            if name != "open" or str(arguments[1] or "").strip("rbt+"):
                self.event()


def watch(countdown: Countdown) -> None:
    from importlib import import_module

    def counted(inner: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            countdown.event()
            return inner(*given, **named)

        return call

    for module, owner, name in STEPS:
        place = import_module(module) if owner is None else getattr(import_module(module), owner)
        setattr(place, name, counted(getattr(place, name)))
    sys.addaudithook(countdown.audit)


def run(job: dict[str, Any]) -> None:
    from alignopsd_trl.commands.launch.recipe import main

    log = open(job["log"], "a")  # noqa: SIM115 (for the life of the process)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    countdown = Countdown(job["folder"], job.get("last"), job.get("signal", 9), job.get("delay", 0.0))
    watch(countdown)
    main("webshop_tiny", job["argv"])
    Path(job["log"]).with_suffix(".events").write_text(str(countdown.count))


def serve() -> None:
    import torch

    import alignopsd_trl.commands.launch.recipe
    import alignopsd_trl.trainer  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run(job)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "seconds": time.perf_counter() - started}))
        sys.stdout.flush()


if __name__ == "__main__":
    serve()

"""What a command line asks for: a plan, which imports no trainer, or a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from alignopsd_trl.launch.arguments import differences_from_preset, parse
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.job import Job
from alignopsd_trl.launch.light import no_kubeflow
from alignopsd_trl.runs.cores import use_machine


def start(
    name: str, argv: Sequence[str], preset: Mapping[str, Any] | None = None, whole: bool = False
) -> dict[str, Any] | None:
    """Plans or runs what a command line asks for; returns what `running.run` does (``None`` for a plan).

    Args:
        whole: a plan with every setting.
    """
    with setup():
        with no_kubeflow() if "--plan" in argv else nullcontext():
            asked = parse(name, argv, preset)
            changed = differences_from_preset(name, preset, *asked)
        job = Job.of(*asked)
        if job.recipe.plan:
            from alignopsd_trl.launch.plan import plan

            text = plan(job, changed, whole)
            if int(os.environ.get("RANK", "0")) == 0:
                print(text)
            return None
        threads = use_machine(job.recipe.threads) if job.args.device.type == "cpu" else ""
    from alignopsd_trl.launch.running import run

    return run(job, changed=changed, machine=threads)

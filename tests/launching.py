"""Runs a script in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_script(script: Path, *arguments: object, processes: int = 1, timeout: float = 900, **environment: str) -> str:
    """Runs a Python file to its end; several processes are torchrun's.

    Args:
        timeout: in seconds.
        environment: further variables.

    Returns:
        What it printed.
    """
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable]
    if processes > 1:
        variables["ACCELERATE_USE_CPU"] = "true"
        command += ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
        command += ["--master_port", "0", "--standalone"]
    done = subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout

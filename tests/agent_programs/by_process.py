"""verifiers 0.4, which has an environment of its own, made by uv: its Python is in VERIFIERS_PYTHON.

The policy gets a shell there, and with it the variables of the process: this one's may hold tokens, so few are passed.
"""

import asyncio
import os
from asyncio.subprocess import PIPE
from pathlib import Path

PASSED = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "UV_SYSTEM_CERTS") if name in os.environ}
TASK = Path(__file__).with_name("verifiers_task.py")


async def agent(row, client):
    command, env = [os.environ["VERIFIERS_PYTHON"], TASK, client.url, str(row["number"])], {"POLICY_KEY": client.key}
    process = await asyncio.create_subprocess_exec(*command, env=PASSED | env, stdout=PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{TASK.name} ended with {process.returncode}")
    return float(said.split()[-1])

"""verifiers 0.4, which has an environment of its own, made by uv: its Python is in VERIFIERS_PYTHON."""

import asyncio
import os
from asyncio.subprocess import PIPE
from pathlib import Path

TASK = Path(__file__).with_name("verifiers_task.py")


async def agent(row, client):
    command, env = [os.environ["VERIFIERS_PYTHON"], TASK, client.url, str(row["number"])], {"POLICY_KEY": client.key}
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | env, stdout=PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{TASK.name} ended with {process.returncode}")
    return float(said.split()[-1])

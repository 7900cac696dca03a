"""Programs of frameworks with environments of their own, played over `client.url` by a process that `worker` runs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Lost(Exception):
    """What the framework raised for the policy's mistakes."""


class Elsewhere:
    """A program, by the command that runs it."""

    LOSES = (Lost,)

    def __init__(self, *command: str | Path):
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "CREWAI_DISABLE_TELEMETRY": "true"}  # no look at the network
        self._process = subprocess.Popen(
            [*map(str, command)], cwd=HERE, env=os.environ | quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == b"ready\n"
        self._waiting: dict[int, Future[float]] = {}
        self._numbers, self._lock = itertools.count(), threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def agent(self, row: dict[str, Any], client: Any) -> float:
        with self._lock:
            number = next(self._numbers)
            found = self._waiting[number] = Future()
            asked = {"episode": number, "row": row, "url": client.url, "key": client.key}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        return found.result()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            told = json.loads(line)
            waiting = self._waiting.pop(told["episode"])
            if "reward" in told:
                waiting.set_result(told["reward"])
            else:
                waiting.set_exception(Lost(told["lost"]) if "lost" in told else RuntimeError(told["raised"]))
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError("the program's process ended"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

"""Plays a program in the environment of its framework: `python worker.py by_dspy`. An episode is a line of JSON."""

import asyncio
import inspect
import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # frameworks print
program = import_module(f"agent_programs.{sys.argv[1]}")


def parts(error: BaseException) -> list[BaseException]:
    """The errors of a task group, or the one."""
    return sum(map(parts, getattr(error, "exceptions", [])), []) or [error]


def play(asked: dict) -> None:
    told = {"episode": asked["episode"]}
    try:
        found = program.agent(asked["row"], SimpleNamespace(url=asked["url"], key=asked["key"]))
        told["reward"] = asyncio.run(found) if inspect.iscoroutine(found) else found
    except Exception as error:
        lost = all(isinstance(one, program.LOSES) for one in parts(error))
        told["lost" if lost else "raised"] = f"{type(error).__name__}: {error}"
    print(json.dumps(told), file=answers, flush=True)


print("ready", file=answers, flush=True)
for line in sys.stdin:
    threading.Thread(target=play, args=(json.loads(line),), daemon=True).start()

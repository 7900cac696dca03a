"""Environments that misbehave on request, for the pool's tests. They need no engine."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from alignopsd_trl.environments.base import Ending, Opening, Projection, Step, TextEnvironment


class Diary(TextEnvironment):
    """Its state is all that was done to it, so an episode that lost or gained an action shows it."""

    prompt = None
    history_length = 1
    max_turns = 7

    def reset(self, **task):
        if task.get("broken"):
            raise ValueError("a broken task")
        self.name, self.done = task["task_id"], []
        return Opening(f"day one of {self.name}", self.name)

    def step(self, action):
        if action == "die" or (action == "die once" and not os.path.exists(self.name)):
            if action == "die once":
                open(self.name, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "sleep":
            time.sleep(600)
        if action == "raise":
            raise KeyError("oops")
        self.done.append(action)
        return Step(" ".join(self.done), info={"pid": os.getpid()})

    def project(self, response):
        return Projection(response, True)

    def finish(self):
        return Ending(reward=float(len(self.done)))


@dataclass(frozen=True)
class DiaryFactory:
    failure: str = ""

    def __call__(self):
        return Diary()

    def prepare(self):
        if self.failure == "exit":
            os._exit(3)
        if self.failure:
            raise (EOFError if self.failure == "end" else OSError)(self.failure)

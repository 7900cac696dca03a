"""Worlds that worker processes play. Their module is light, since each worker imports it."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np

from alignopsd_trl.environments import Ending, Opening, PlainEnvironment, Step
from alignopsd_trl.environments.base import EnvironmentsDown


class Broken:
    """Ends what pickles it, or what reads it, as a closed connection would."""

    def __init__(self, here: str):
        self._here = here

    def __reduce__(self) -> Any:
        return raises() if self._here == "written" else (raises, ())


def raises() -> Any:
    raise EOFError("no end was closed")


class Drawing(PlainEnvironment):
    """Draws from the global generators in every call, and seeds nothing."""

    concurrent = "processes"

    def reset(self, seed: int, **row: Any) -> Opening:
        self.seen = [self._draw()]
        return Opening("a door", "open it")

    def step(self, action: str) -> Step:
        if action == "leave":
            raise SystemExit(action)
        if action == "down":
            raise EnvironmentsDown(action)
        self.seen.append(self._draw())
        info = {"process": os.getpid()} if action == "where" else {"lock": open(os.devnull)} if action == "lock" else {}
        info |= {"broken": Broken(action)} if action in ("written", "read") else {}
        return Step(str(self.seen), info=info)

    def finish(self) -> Ending:
        return Ending(reward=self._draw()[0])

    def _draw(self) -> tuple[float, float]:
        return random.gauss(0, 1), float(np.random.normal())

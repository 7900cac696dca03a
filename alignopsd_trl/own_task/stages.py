"""Prints where the time of a long command goes, while it runs and at its end."""

from __future__ import annotations

import sys
import threading
import time

EVERY = 15.0  # seconds between two lines
LONG = 20.0  # seconds of a command after which its end lists the longest stages


class Stages:
    """Prints timings to standard error: ``with Stages("alignopsd check") as stages: stages.begin("random play")``."""

    def __init__(self, command: str):
        self._command, self._stage = command, "starting"
        self._begun = self._since = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._ended = threading.Event()

    def begin(self, stage: str) -> None:
        """Ends the current stage and begins the next."""
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def __enter__(self) -> Stages:
        threading.Thread(target=self._tell, daemon=True, name="stages").start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.begin("")
        taken = sum(self._seconds.values())
        if taken > LONG:
            longest = sorted(self._seconds.items(), key=lambda one: -one[1])[:3]
            self._say(f"took {taken:.0f} s: " + ", ".join(f"{name} {part:.0f} s" for name, part in longest))

    def _tell(self) -> None:
        while not self._ended.wait(EVERY):
            self._say(f"{time.monotonic() - self._begun:.0f} s so far, now: {self._stage}")

    def _say(self, text: str) -> None:
        print(f"{self._command}: {text}", file=sys.stderr, flush=True)

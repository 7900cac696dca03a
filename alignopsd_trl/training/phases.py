"""Wall seconds of an update by phase."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Generator


class Phases:
    """Adds up wall seconds per named phase. Phases may nest; the time of an inner phase counts for it alone.

    Args:
        entered: function of the name of each phase that begins.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(self, entered: Callable[[str], None] = lambda name: None) -> None:
        self._entered = entered
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.total: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def __call__(self, name: str) -> Generator[None]:
        self._charge()
        self._open.append(name)
        self._entered(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    @property
    def current(self) -> str | None:
        """The innermost open phase."""
        return self._open[-1] if self._open else None

    def take(self) -> dict[str, float]:
        """Returns seconds per phase since the last call; `total` holds the sums of the whole run."""
        taken = dict(self.seconds)
        self.seconds.clear()
        return taken

    def _charge(self) -> None:
        now = self.clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
            self.total[self._open[-1]] += now - self._since
        self._since = now

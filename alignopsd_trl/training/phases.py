"""The time of a run: seconds by phase, seconds over all sessions, and the console's line about both."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.common.progress import duration, show_status
from alignopsd_trl.config import AlignOPSDConfig

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy


class Phases:
    """Adds up wall seconds per named phase. Phases may nest; the time of an inner phase counts for it alone."""

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


class Seconds:
    """Wall seconds of a run over all its sessions. Work after a session's last checkpoint is repeated and counts
    once."""

    def __init__(self) -> None:
        self._total = {"training": 0.0, "evaluation": 0.0}
        self._began: float | None = None
        self._evaluated_before = 0.0

    @property
    def total(self) -> dict[str, float]:
        """Seconds of ``training`` and ``evaluation``."""
        if self._began is None:
            return dict(self._total)
        evaluated = self._total["evaluation"] - self._evaluated_before
        return self._total | {"training": self._total["training"] + time.perf_counter() - self._began - evaluated}

    def begin(self) -> None:
        """Begins to count training seconds; a session without training adds none."""
        if self._began is None:
            self._evaluated_before, self._began = self._total["evaluation"], time.perf_counter()

    def end(self) -> None:
        self._total, self._began = self.total, None

    def evaluated(self, seconds: float) -> None:
        self._total["evaluation"] += seconds

    def resume(self, training: float) -> None:
        self._total["training"] = training


@dataclass(eq=False)
class Status:
    """The line of the console beside the bars of rollouts."""

    config: AlignOPSDConfig
    processes: ProcessGroup
    policy: TrainedPolicy
    seconds: Seconds

    def show_phase(self, name: str) -> None:
        """Shows the phase that begins, on the first process of a machine. Rollouts have a bar."""
        if not self.config.disable_tqdm and self.processes.is_local_main and name != "rollout":
            state = self.policy.state
            place = f"update {state.global_step + 1}/{state.max_steps}: {name.replace('_', ' ')}"
            show_status("; ".join(filter(None, [place, self.updates_left()])))

    def updates_left(self) -> str:
        """Returns a text with the time of the remaining updates, at the rate of those before."""
        made, left = self.policy.state.global_step, self.policy.state.max_steps - self.policy.state.global_step
        if not made or left < 1:
            return ""
        return f"the run's updates: about {duration(self.seconds.total['training'] / made * left)}"

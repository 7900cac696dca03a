"""Shows on the console the current phase of a run and the time that its updates still take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.distributed.process_group import ProcessGroup
from alignopsd_trl.runs.progress import duration, show_status
from alignopsd_trl.training.checkpoints import Seconds

if TYPE_CHECKING:
    from alignopsd_trl.trl_compat.policy import TrainedPolicy


@dataclass(eq=False)
class Status:
    """The line of the console beside the bars of rollouts.

    Args:
        policy: knows the current update and the number of updates.
        seconds: of the run so far.
    """

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

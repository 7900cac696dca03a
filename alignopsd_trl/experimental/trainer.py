"""ContinuousTrainer: no episode waits for another, and a vLLM server may play the next round during the update."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from datasets import Dataset

from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.rounds_ahead import RolloutsAhead, Upcoming
from alignopsd_trl.experimental.server import ServerBackend
from alignopsd_trl.experimental.trl_colocated import ColocatedBackend, sampling_options
from alignopsd_trl.results.summary import EvaluationResult
from alignopsd_trl.rollout.monte_carlo.rollouts import Replays
from alignopsd_trl.sampling.backend import Backend, Snapshot
from alignopsd_trl.sampling.trl_engine import push_weights
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training.order import EpochSampler
from alignopsd_trl.training.rollouts import Rollouts
from alignopsd_trl.turns import Trajectory


class ContinuousTrainer(AlignOPSDTrainer):
    """An [`AlignOPSDTrainer`] whose processes ask vLLM for each turn by themselves.

    Args:
        args ([`ContinuousConfig`]): the configuration; all others are as in [`AlignOPSDTrainer`].
    """

    def __init__(self, model: Any, args: ContinuousConfig, *rest: Any, **parts: Any):
        if not isinstance(args, ContinuousConfig):
            raise TypeError(f"args must be a ContinuousConfig, got {type(args).__name__}")
        self._config = args
        super().__init__(model, args, *rest, **parts)

    def make_backend(self) -> Backend:
        if self._config.vllm_mode == "server":
            push, options = partial(push_weights, self), partial(sampling_options, self)
            return ServerBackend(self, self._config, self.processes, push, options)
        return ColocatedBackend(self, self.processes)

    def make_rollouts(self, **parts: Any) -> Rollouts:
        return RolloutsAhead(**parts) if self._config.rounds_ahead else super().make_rollouts(**parts)

    def _play(self, inputs: list[dict[str, Any]], snapshot: Snapshot) -> tuple[list[Trajectory], Replays]:
        """Plays a round, and begins the next one, if there is one: it goes on during credit and update of this one."""
        trajectories, replays = super()._play(inputs, snapshot)
        if isinstance(self.rollouts, RolloutsAhead):
            self.recorder.metrics("train", staleness_metrics(trajectories))
            rows, updates = self._upcoming.after()
            update = self.state.global_step + updates
            if update < self.state.max_steps:
                self.rollouts.begin(self._to_play(rows, update, snapshot))
        return trajectories, replays

    @contextlib.contextmanager
    def _walking(self) -> Generator[None]:
        self._settle()
        if isinstance(self.backend, ColocatedBackend):
            self.backend.take_back()
        with super()._walking():
            yield

    def _settle(self) -> None:
        """Waits until the environments are idle. A collective where a round is played ahead."""
        if isinstance(self.rollouts, RolloutsAhead):
            self.rollouts.settle()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._settle()
        return super().evaluation_loop(*args, **kwargs)

    def evaluate_panel(self, *args: Any, **kwargs: Any) -> EvaluationResult:
        self._settle()
        return super().evaluate_panel(*args, **kwargs)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        order = super()._get_train_sampler(dataset)
        accumulated, group = self.args.gradient_accumulation_steps, self.processes
        self._upcoming = Upcoming(order, accumulated, group.process, group.processes)
        return order

    def _run_epoch(self, model: Any, epoch: int, *args: Any, **kwargs: Any) -> None:
        resumed = epoch == kwargs["epochs_trained"]
        self._upcoming.begin(epoch, kwargs["steps_trained_in_current_epoch"] if resumed else 0)
        super()._run_epoch(model, epoch, *args, **kwargs)


def staleness_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns mean and maximum of `Turn.staleness`; empty without turns."""
    found = [turn.staleness for one in trajectories for turn in one.turns]
    return {"staleness/mean": sum(found) / len(found), "staleness/max": max(found)} if found else {}

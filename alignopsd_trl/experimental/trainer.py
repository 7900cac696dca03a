"""ContinuousTrainer: no episode waits for another, and a vLLM server may play the next round during the update."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from datasets import Dataset

from alignopsd_trl.common.progress import Bar
from alignopsd_trl.experimental.config import ContinuousConfig
from alignopsd_trl.experimental.server import SECONDS_TO_END, ServerBackend, in_background
from alignopsd_trl.experimental.trl_colocated import ColocatedBackend, sampling_options
from alignopsd_trl.results.summary import EvaluationResult
from alignopsd_trl.rollout.driver import SLICE
from alignopsd_trl.rollout.loop import ENDS
from alignopsd_trl.rollout.monte_carlo.replays import Replays
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.sampling.backend import Backend, Snapshot
from alignopsd_trl.sampling.trl_engine import push_weights
from alignopsd_trl.trainer import AlignOPSDTrainer
from alignopsd_trl.training.order import EpochSampler
from alignopsd_trl.training.rollouts import Rollouts, ToPlay
from alignopsd_trl.turns import Trajectory


class RolloutsAhead(Rollouts):
    """Plays rounds in a thread of their own, the next one while the main thread goes on with the last."""

    _asked: ToPlay
    _ahead: Future[tuple[list[Trajectory], dict[str, float]]] | None = None

    def close(self) -> None:
        self._ended(SECONDS_TO_END)
        self._ahead = None
        super().close()

    def _played(self, asked: ToPlay) -> list[Trajectory]:
        """Takes up the round that was begun; the first one is begun here."""
        if self._ahead is None:
            self.begin(asked)
        self.settle()
        assert self._ahead is not None, "it was begun"
        taken, self._ahead = self._ahead, None
        trajectories, self._counted = self.processes.together(taken.result, ENDS)
        if [row["task_id"] for row in self._asked.rows] != [row["task_id"] for row in asked.rows]:
            raise RuntimeError(
                "other tasks were played ahead than the data loader gives; this is a bug, please report it"
            )
        return trajectories

    def begin(self, asked: ToPlay) -> None:
        """Begins to play a round, which `play` takes up."""
        self._bar, played = super()._bar_of(asked), super()._played  # opens the environments in this thread
        self._hidden, self._bar.disable = self._bar.disable, True
        self._asked, self._ahead = asked, in_background(lambda: (played(asked), self._added()), "ahead")

    def _bar_of(self, asked: ToPlay) -> Bar:
        return self._bar

    def _player_of(self, asked: ToPlay, progress: Bar) -> Player:
        """Makes a player that plays without a collective: the processes meet in `settle`."""
        player = super()._player_of(asked, progress)
        player.agree, player.each = lambda number: number, lambda value: [value]
        return player

    def settle(self) -> None:
        """Waits until the rounds of all processes have ended, and synchronises once a minute. A collective."""
        if self._ahead is not None:
            self._bar.disable = self._hidden
            while self.processes.agree(int(not self._ended(SLICE))):
                pass

    def _ended(self, seconds: float) -> bool:
        return self._ahead is None or bool(wait([self._ahead], seconds).done)

    def take_counters(self) -> dict[str, float]:
        return self._counted


class Upcoming:
    """Predicts the tasks of the next round without touching the data loader, so that a resumed run still skips trained
    tasks there.

    Args:
        order: sampler of the tasks; without a seed, its order can't be predicted.
        accumulated: batches of the data loader in one update.
        process, processes: rank whose part of a round is returned, and number of ranks.
    """

    def __init__(self, order: EpochSampler, accumulated: int, process: int, processes: int):
        self._order, self._accumulated = EpochSampler.like(order), accumulated
        self._order.kinds = order.kinds
        self._rounds = order.num_samples // order.batch_size  # rounds of an epoch
        self._size = order.batch_size * order.mini_repeat_count
        self._share = slice(process * self._size // processes, (process + 1) * self._size // processes)

    def begin(self, epoch: int, batches: int) -> None:
        """Sets the position: this epoch, after this many of its batches."""
        self._epoch, self._round = epoch, batches // self._order.repeat_count

    def after(self) -> tuple[list[Any], int]:
        """Returns the rows of the next round, and the number of updates until it starts. Call it once in each round."""
        here = self._update()
        self._round += 1
        if self._round == self._rounds:
            self._epoch, self._round = self._epoch + 1, 0
        self._order.epoch = self._epoch
        rows = list(self._order)[self._round * self._order.repeat_count * self._size :][self._share]
        source: Any = self._order.data_source
        return [source[row] for row in rows], self._update() - here

    def _update(self) -> int:
        batches = self._order.repeat_count
        an_epoch = -(-self._rounds * batches // self._accumulated)
        return self._epoch * an_epoch + self._round * batches // self._accumulated


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

    def _play(self, inputs: list[dict[str, Any]], snapshot: Snapshot) -> list[Trajectory]:
        """Plays a round, and begins the next one, if there is one: it goes on during credit and update of this one."""
        trajectories = super()._play(inputs, snapshot)
        if isinstance(self.rollouts, RolloutsAhead):
            late = [turn.staleness for one in trajectories for turn in one.turns]
            found = {"staleness/mean": sum(late) / len(late), "staleness/max": max(late)} if late else {}
            self.recorder.metrics(found)
            rows, updates = self._upcoming.after()
            update = self.state.global_step + updates
            if update < self.state.max_steps:
                self.rollouts.begin(self._to_play(rows, update, snapshot))
        return trajectories

    @contextlib.contextmanager
    def _replays(self, snapshot: Snapshot) -> Generator[Replays]:
        self._settle()
        if isinstance(self.backend, ColocatedBackend):
            self.backend.take_back()
        with super()._replays(snapshot) as replays:
            yield replays

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

"""Measures rounds of a training run: the credit of its method beside Monte Carlo advantages of the same turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from alignopsd_trl.commands.measure.metrics import NAMES, agreement, measured_rows, turn_table, turns_of
from alignopsd_trl.commands.measure.variants import turn_credit
from alignopsd_trl.common.options import PositiveCount, settle
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.rollout.monte_carlo.replays import counted, measured, rows_of, tasks_that_differ
from alignopsd_trl.training.recorder import Round, RoundCallback


@dataclass(eq=False)
class FidelityCallback(RoundCallback):
    """Logs, every few rounds, how far a round's credit agrees with A_MC: ``callbacks=[FidelityCallback(every=5)]``.

    Args:
        every: rounds between two measurements.
        tasks: sibling groups of a process that a measurement takes, of those whose rewards differ.
        rollouts: Monte Carlo rollouts a state on average, at most.

    Raises:
        ValueError: for a number below 1, and at the start of training with ``history="conversation"``.
    """

    every: PositiveCount
    tasks: PositiveCount = 4
    rollouts: PositiveCount = 8

    def __post_init__(self) -> None:
        settle(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.history != "window":
            raise ValueError(
                f"FidelityCallback replays actions, which make no conversation, but history={args.history!r}; use "
                "history='window', or leave the callback out"
            )

    def listens(self, number: int) -> bool:
        return number % self.every == 0

    def on_round(self, args: AlignOPSDConfig, played: Round) -> dict[str, float]:
        """Returns the agreement on this process's first groups whose rewards differ. Values are of success, or of
        rewards where success is unknown."""
        known = counted(played.trajectories)
        chosen = tasks_that_differ(known)[: self.tasks]
        known = [one for one in known if one.task in chosen]
        value = "reward" if any(one.won is None for one in known) else "success"
        with played.replays() as replays:
            found = measured(replays, known, self.rollouts, value, enough=None)
        metrics = {"fidelity/tasks": float(len(chosen)), "fidelity/turns": float(found.known.sum())}
        if not found.known.any():
            return metrics
        rows = rows_of(known)
        table = turn_table(known, found, outcome(played.batch, args).advantage.cpu().numpy()[rows])
        table["credit"] = turn_credit(played.credit, played.batch).cpu().numpy()[rows]
        table = measured_rows([table])
        turns = turns_of(table)
        figures = agreement(turns, {"credit": table["credit"].to_numpy()}, "credit")["credit"]
        shown = {name: figures[name].value for name in NAMES} | turns.quality
        return metrics | {f"fidelity/{name}": value for name, value in shown.items() if np.isfinite(value)}

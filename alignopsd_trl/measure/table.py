"""The table of turns: one row per turn, with its Monte Carlo value and every variant's credit (``turns.parquet``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from alignopsd_trl.measure.metrics import Turns
from alignopsd_trl.rollout.monte_carlo.tree import Advantages
from alignopsd_trl.turns import Trajectory

CREDIT = "credit "
"""Columns of credit are named by this word and the variant's label."""

_OF_EPISODE = ("task", "rollout", "category", "won", "reward")


def turn_table(episodes: Sequence[Trajectory], found: Advantages, outcome: np.ndarray) -> pd.DataFrame:
    """Makes the table of the turns of some episodes, without credit.

    Args:
        found: A_MC of the turns.
        outcome: the outcome advantage of each turn.
    """
    rows = [
        {name: getattr(one, name) for name in _OF_EPISODE}
        | {"turn": turn.number, "thinking": turn.thought.thinking, "action": turn.action}
        for one in episodes
        for turn in one.turns
    ]
    return pd.DataFrame(rows, columns=[*_OF_EPISODE, "turn", "thinking", "action"]).assign(
        outcome_advantage=outcome,
        a_mc=found.advantage,
        a_mc_error=found.error,
        a_mc_half_0=found.halves[0],
        a_mc_half_1=found.halves[1],
        value_before=found.before,
        value_after=found.after,
        walks=found.rollouts,
    )


def measured_rows(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Returns the turns whose A_MC is known, of tables of different tasks."""
    table = pd.concat([one.assign(part=place) for place, one in enumerate(tables)], ignore_index=True)
    return table[table.a_mc.notna() & table.a_mc_error.notna()]


def turns_of(table: pd.DataFrame) -> Turns:
    """Returns the columns of `measured_rows` that the figures take."""
    return Turns(
        table.groupby(["part", "task"], sort=False).ngroup().to_numpy(),
        table.groupby(["part", "task", "rollout"], sort=False).ngroup().to_numpy(),
        *(table[name].to_numpy() for name in ("outcome_advantage", "a_mc", "a_mc_error")),
        table[["a_mc_half_0", "a_mc_half_1"]].to_numpy().T,
    )


def credit_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns the credit of each variant, by its label."""
    return {name.removeprefix(CREDIT): table[name].to_numpy() for name in table if name.startswith(CREDIT)}

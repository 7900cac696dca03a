"""Where walks go: a few everywhere first, then where the error that is left, per turn of walking, is largest.

Which states get more is read from the *other* half's outcomes: a value whose own outcomes chose its number of walks
would be biased (states that looked hopeless at first would never be looked at again).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alignopsd_trl.fidelity.tree import HALVES, Tree, back_up
from alignopsd_trl.turns import Trajectory

FIRST_SHARE = 1 / 3  # of the walks, spread evenly
MOST = 10  # times the even share that one state may get


def worth_walking(tree: Tree, trajectories: Sequence[Trajectory], everywhere: bool = False) -> list[int]:
    """States of groups whose rewards differ: elsewhere the outcome advantage is 0, and so is what is made of it."""
    rewards: dict[str, set[float]] = {}
    for trajectory in trajectories:
        rewards.setdefault(trajectory.task, set()).add(trajectory.reward)
    return [row for row, state in enumerate(tree.states) if everywhere or len(rewards[state.task]) > 1]


def walk_lengths(tree: Tree, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """``(S,)`` turns that an episode takes from each state on, by the episodes that were there."""
    return np.array(
        [np.mean([len(trajectories[place].turns) - number for place, number in state.visits]) for state in tree.states]
    )


def first_walks(states: Sequence[int], walks: int) -> list[tuple[int, int, int]]:
    """(half, state, number) of the first round: the same everywhere."""
    number = max(1, round(walks * FIRST_SHARE / 2))
    return [(half, state, number) for state in states for half in HALVES]


def further_walks(
    tree: Tree, states: Sequence[int], lengths: np.ndarray, walks: int, scale: float
) -> list[tuple[int, int, int]]:
    """(half, state, number) of the second round.

    The best allocation of walks to independent means is in proportion to sqrt(variance / cost), and the budget that is
    left buys it as far as the walks already taken allow. A state counts once for each turn that was taken in it and
    once for each that led to it.

    Args:
        lengths: ``(S,)`` cost of a walk from each state, in turns.
        walks: walks a state that the whole budget would pay for.
    """
    rows = np.array(states, dtype=np.int64)
    turns = np.array([len(tree.states[row].visits) * (2 if tree.states[row].path else 1) for row in states])
    chosen = []
    for half in HALVES:
        spread = back_up(tree, 1 - half, scale).spread[rows]
        had = back_up(tree, half, scale).visits[rows]
        started = max(1, round(walks * FIRST_SHARE / 2))
        budget = float((walks / 2 - started) * lengths[rows].sum())
        wanted = np.sqrt(turns * spread / lengths[rows])
        more = _fill(wanted, had, lengths[rows], budget, MOST * walks // 2)
        chosen += [(half, int(row), int(number)) for row, number in zip(rows, more, strict=True) if number]
    return chosen


def _fill(wanted: np.ndarray, had: np.ndarray, cost: np.ndarray, budget: float, most: int) -> np.ndarray:
    """Whole numbers about ``min(max(level * wanted - had, 0), most)`` that the budget pays for."""
    low, high = 0.0, 1e9
    for _ in range(80):
        level = (low + high) / 2
        number = np.clip(level * wanted - had, 0, most)
        low, high = (low, level) if (number * cost).sum() > budget else (level, high)
    number = np.clip(low * wanted - had, 0, most)
    whole = np.floor(number)
    left = budget - (whole * cost).sum()
    for row in np.argsort(whole - number, kind="stable"):
        if number[row] > whole[row] and cost[row] <= left:
            whole[row] += 1
            left -= cost[row]
    return whole.astype(np.int64)

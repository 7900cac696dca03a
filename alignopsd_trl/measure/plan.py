"""Chooses the states from which Monte Carlo rollouts start.

Every state gets a few at first. Later rounds go where a turn of rollout reduces the error most, and end once A_MC is
reliable. The outcomes of one half decide the number of rollouts in the *other* half. If a state's own outcomes decided
it, its value would be biased: a state that looked hopeless at first would never be tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from alignopsd_trl.measure.tree import HALVES, Advantages, Tree, advantages, back_up, doubts
from alignopsd_trl.turns import Trajectory

FIRST_SHARE = 1 / 3  # share of the rollouts that are even over states
FURTHER_SHARES = (0.5, 0.75, 1.0)  # share of the rollouts played by the end of each later round
ADDED = 0.03  # of the standard error of r
LEAST_RELIABLE, MOST_RELIABLE = 0.3, 0.95
MOST = 10  # maximum of a state's rollouts, as a multiple of the even share

Wanted = tuple[int, int, int]  # half, state, number of rollouts


def worth_measuring(tree: Tree, trajectories: Sequence[Trajectory], everywhere: bool = False) -> list[int]:
    """Returns the states of groups whose rewards differ. In the other groups all credit is 0."""
    differ = tasks_that_differ(trajectories)
    return [row for row, state in enumerate(tree.states) if everywhere or state.task in differ]


def tasks_that_differ(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns the tasks whose siblings have different rewards, in order."""
    rewards: dict[str, set[float]] = {}
    for one in trajectories:
        rewards.setdefault(one.task, set()).add(one.reward)
    return [task for task, values in rewards.items() if len(values) > 1]


def rollout_lengths(tree: Tree, trajectories: Sequence[Trajectory], until_lost: bool = False) -> np.ndarray:
    """Estimates ``(S,)`` the remaining turns from each state, at least one, from the episodes that visited it.

    Args:
        until_lost: whether an episode ends where it is lost.
    """
    ends = [len(one.turns) if one.lost is None or not until_lost else one.lost for one in trajectories]
    return np.array(
        [np.mean([max(ends[place] - number, 1) for place, number in state.visits]) for state in tree.states]
    )


def rounds(
    tree: Tree,
    trajectories: Sequence[Trajectory],
    states: Sequence[int],
    ends: Sequence[float],
    rollouts: int,
    enough: float | None,
    until_lost: bool = False,
) -> Iterator[list[Wanted]]:
    """Yields the rollouts of each round. The caller adds them to the tree before it draws the next round. The number of
    rounds is fixed; some may be empty.

    Args:
        ends: outcomes of the trajectories.
        rollouts: the whole budget, in rollouts per state.
        enough: reliability of A_MC at which rollouts stop; `None` is `enough_for`.
        until_lost: whether rollouts end where they are lost.
    """
    lengths = rollout_lengths(tree, trajectories, until_lost)
    for odd in (0, 1):
        yield first_rollouts(tree, states, rollouts, odd)
    tasks = {tree.states[state].task for state in states}
    turns = [(row, turn.number) for row, one in enumerate(trajectories) if one.task in tasks for turn in one.turns]
    enough = enough_for(len(states)) if enough is None else enough
    for share in FURTHER_SHARES:
        doubt = [doubts(tree, half, ends) for half in HALVES]
        found = advantages(tree, turns, ends, doubt)
        unsure = [half for half in HALVES if states and expected_reliability(found, turns, 1 - half) < enough]
        yield further_rollouts(tree, states, lengths, rollouts, share, doubt, unsure)


def enough_for(states: int) -> float:
    """Returns the reliability of A_MC at which its noise adds about `ADDED` to the standard error of a correlation.

    Turns of one state share their error, so the number of states counts. The rest of an interval depends on the number
    of tasks, which more rollouts can't change."""
    needed = 1 / (1 + states * ADDED**2)
    return min(max(needed, LEAST_RELIABLE), MOST_RELIABLE)


def expected_reliability(found: Advantages, turns: Sequence[tuple[int, int]], half: int) -> float:
    """Predicts the reliability of A_MC from two halves like this one.

    Args:
        turns: (trajectory, turn number) of the rows of ``found``.
    """
    known = np.isfinite(found.halves[half])
    values = found.halves[half][known]
    group = np.unique(np.array([trajectory for trajectory, _ in turns])[known], return_inverse=True)[1]
    means = np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1)
    total, noise = ((values - means[group]) ** 2).sum(), found.variances[half][known].sum()
    signal = max(total - noise, 0.0)
    return float(signal / (signal + noise / 2)) if signal else 0.0


def first_rollouts(tree: Tree, states: Sequence[int], rollouts: int, odd: int) -> list[Wanted]:
    """Allocates equally many rollouts to each state, in a round for even and one for odd depths (``odd``). Rollouts of
    the first round that pass states of odd depth count there."""
    number = max(1, round(rollouts * FIRST_SHARE / 2))
    return [
        (half, state, number - tree.seen[state][half].count)
        for state in states
        for half in HALVES
        if len(tree.states[state].path) % 2 == odd and tree.seen[state][half].count < number
    ]


def further_rollouts(
    tree: Tree,
    states: Sequence[int],
    lengths: np.ndarray,
    rollouts: int,
    share: float,
    doubt: Sequence[float | np.ndarray],
    halves: Sequence[int] = HALVES,
) -> list[Wanted]:
    """Allocates the rollouts of a later round.

    The best number of rollouts for each of several independent means is proportional to sqrt(variance / cost). The rest
    of the budget approaches these numbers, given the rollouts already played. A state counts once for each turn taken
    in it and once for each turn that led to it.

    Args:
        lengths: ``(S,)`` cost of a rollout from each state, in turns.
        rollouts: the whole budget, in rollouts per state.
        share: share of the budget spent by the end of this round.
        doubt: prior variances of either half, see `tree.back_up`.
        halves: the halves that get rollouts.
    """
    rows = np.array(states, dtype=np.int64)
    turns = np.array([len(tree.states[row].visits) * (2 if tree.states[row].path else 1) for row in states])
    chosen = []
    for half in halves:
        spread = back_up(tree, 1 - half, doubt[1 - half]).spread[rows]
        had = np.array([tree.seen[row][half].count for row in rows])
        budget = rollouts / 2 * share * lengths[rows].sum() - tree.rollout_turns[half]
        wanted = np.sqrt(turns * np.nan_to_num(spread) / lengths[rows])
        more = _fill(wanted, had, lengths[rows], budget, MOST * rollouts // 2)
        chosen += [(half, int(row), int(number)) for row, number in zip(rows, more, strict=True) if number]
    return chosen


def _fill(wanted: np.ndarray, had: np.ndarray, cost: np.ndarray, budget: float, most: int) -> np.ndarray:
    """Returns whole numbers near ``min(max(level * wanted - had, 0), most)`` within the budget."""
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

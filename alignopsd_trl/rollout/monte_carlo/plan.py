"""Chooses the states from which Monte Carlo rollouts start.

Every state gets a few at first. Later rounds go where a turn of rollout reduces the error most, and end once A_MC is
reliable. The outcomes of one half decide the number of rollouts in the *other* half. If a state's own outcomes decided
it, its value would be biased: a state that looked hopeless at first would never be tried again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from alignopsd_trl.common.statistics import group_means
from alignopsd_trl.rollout.monte_carlo.tree import HALVES, Tree, back_up, doubts, turn_advantages
from alignopsd_trl.turns import Trajectory

FIRST_SHARE = 1 / 3  # share of the rollouts that are even over states
FURTHER_SHARES = (0.5, 0.75, 1.0)  # share of the rollouts played by the end of each later round
ADDED = 0.03  # of the standard error of r
LEAST_RELIABLE, MOST_RELIABLE = 0.3, 0.95
MOST = 10  # maximum of a state's rollouts, as a multiple of the even share

Wanted = tuple[int, int, int]  # half, state, number of rollouts


def worth_measuring(tree: Tree, everywhere: bool = False) -> list[int]:
    """Returns the states of groups whose rewards differ. In the other groups all credit is 0."""
    differ = tasks_that_differ(tree.trajectories)
    return [row for row, state in enumerate(tree.states) if everywhere or state.task in differ]


def tasks_that_differ(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns the tasks whose siblings have different rewards, in order."""
    rewards: dict[str, set[float]] = defaultdict(set)
    for one in trajectories:
        rewards[one.task].add(one.reward)
    return [task for task, values in rewards.items() if len(values) > 1]


def rollout_lengths(tree: Tree) -> np.ndarray:
    """Estimates ``(S,)`` the remaining turns from each state, at least one, from the episodes that visited it. Rollouts
    of success end where all is lost."""
    early = tree.value == "success"
    ends = [one.lost if early and one.lost is not None else len(one.turns) for one in tree.trajectories]
    return np.array(
        [np.mean([max(ends[place] - number, 1) for place, number in state.visits]) for state in tree.states]
    )


def rounds(tree: Tree, states: Sequence[int], rollouts: int, enough: float | None) -> Iterator[list[Wanted]]:
    """Yields the rollouts of each round. The caller adds them to the tree before it draws the next round. The number of
    rounds is fixed; some may be empty.

    Args:
        states: those to measure.
        rollouts: the whole budget, in rollouts per state.
        enough: reliability of A_MC at which rollouts stop; `None` is `enough_for`.
    """
    for odd in (0, 1):
        yield first_rollouts(tree, states, rollouts, odd)
    tasks = {tree.states[state].task for state in states}
    episodes = [one for one in tree.trajectories if one.task in tasks]
    enough = enough_for(len(states)) if enough is None else enough
    for share in FURTHER_SHARES:
        reliable = expected_reliability(tree, episodes)
        unsure = [half for half in HALVES if states and reliable[1 - half] < enough]
        yield further_rollouts(tree, states, rollouts, share, unsure)


def enough_for(states: int) -> float:
    """Returns the reliability of A_MC at which its noise adds about `ADDED` to the standard error of a correlation.

    Turns of one state share their error, so the number of states counts. The rest of an interval depends on the number
    of tasks, which more rollouts can't change."""
    needed = 1 / (1 + states * ADDED**2)
    return min(max(needed, LEAST_RELIABLE), MOST_RELIABLE)


def expected_reliability(tree: Tree, episodes: Sequence[Trajectory]) -> list[float]:
    """Predicts for either half the reliability of A_MC from two halves like it."""
    found = turn_advantages(tree, episodes)
    group = np.array([row for row, one in enumerate(episodes) for _ in one.turns], dtype=np.int64)
    result = []
    for values, variances in zip(found.halves, found.variances, strict=True):
        known = np.isfinite(values)
        within = values[known] - group_means(group[known], values[known])
        noise = variances[known].sum()
        signal = max((within**2).sum() - noise, 0.0)
        result.append(float(signal / (signal + noise / 2)) if signal else 0.0)
    return result


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
    tree: Tree, states: Sequence[int], rollouts: int, share: float, halves: Sequence[int] = HALVES
) -> list[Wanted]:
    """Allocates the rollouts of a later round.

    The best number of rollouts for each of several independent means is proportional to sqrt(variance / cost). The rest
    of the budget approaches these numbers, given the rollouts already played. A state counts once for each turn taken
    in it and once for each turn that led to it.

    Args:
        rollouts: the whole budget, in rollouts per state.
        share: share of the budget spent by the end of this round.
        halves: the halves that get rollouts.
    """
    rows = np.array(states, dtype=np.int64)
    cost = rollout_lengths(tree)[rows]
    turns = np.array([len(tree.states[row].visits) * (2 if tree.states[row].path else 1) for row in states])
    chosen = []
    for half in halves:
        spread = back_up(tree, 1 - half, doubts(tree, 1 - half)).spread[rows]
        had = np.array([tree.seen[row][half].count for row in rows])
        budget = rollouts / 2 * share * cost.sum() - tree.rollout_turns[half]
        more = _fill(np.sqrt(turns * np.nan_to_num(spread) / cost), had, cost, budget, MOST * rollouts // 2)
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

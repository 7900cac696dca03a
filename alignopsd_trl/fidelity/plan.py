"""Where walks go: a few everywhere first, then where the error that is left, per turn of walking, is largest, and no
more once A_MC is reliable.

Which states get more, and whether there is enough, is read from the *other* half's outcomes: a value whose own outcomes
chose its number of walks would be biased (states that looked hopeless at first would never be looked at again).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from alignopsd_trl.fidelity.tree import HALVES, Advantages, Tree, advantages, back_up, doubts
from alignopsd_trl.turns import Trajectory

FIRST_SHARE = 1 / 3  # of the walks, spread evenly
FURTHER_SHARES = (0.5, 0.75, 1.0)  # of the walks, taken after each later round
ADDED = 0.03  # of the standard error of r
LEAST_RELIABLE, MOST_RELIABLE = 0.3, 0.95
MOST = 10  # times the even share that one state may get

Wanted = tuple[int, int, int]  # half, state, how many walks


def worth_walking(tree: Tree, trajectories: Sequence[Trajectory], everywhere: bool = False) -> list[int]:
    """States of groups whose rewards differ: elsewhere the outcome advantage is 0, and so is what is made of it."""
    rewards: dict[str, set[float]] = {}
    for trajectory in trajectories:
        rewards.setdefault(trajectory.task, set()).add(trajectory.reward)
    return [row for row, state in enumerate(tree.states) if everywhere or len(rewards[state.task]) > 1]


def walk_lengths(tree: Tree, trajectories: Sequence[Trajectory], until_lost: bool = False) -> np.ndarray:
    """``(S,)`` turns that an episode takes from each state on, by the episodes that were there; one at least.

    Args:
        until_lost: or until it was lost.
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
    walks: int,
    enough: float | None,
    until_lost: bool = False,
) -> Iterator[list[Wanted]]:
    """What is to be walked, round by round; the walks of a round are in the tree before the next is asked for. There
    are as many rounds whatever is found, some of them empty.

    Args:
        ends: outcomes of the trajectories.
        walks: walks a state that the whole budget would pay for.
        enough: reliability of A_MC from which on no more are wanted; `None` for what `enough_for` says.
        until_lost: whether walks end where they are lost.
    """
    lengths = walk_lengths(tree, trajectories, until_lost)
    for odd in (0, 1):
        yield first_walks(tree, states, walks, odd)
    tasks = {tree.states[state].task for state in states}
    turns = [(row, turn.number) for row, one in enumerate(trajectories) if one.task in tasks for turn in one.turns]
    enough = enough_for(len(states)) if enough is None else enough
    for share in FURTHER_SHARES:
        doubt = [doubts(tree, half, ends) for half in HALVES]
        found = advantages(tree, turns, ends, doubt)
        unsure = [half for half in HALVES if states and expected_reliability(found, turns, 1 - half) < enough]
        yield further_walks(tree, states, lengths, walks, share, doubt, unsure)


def enough_for(states: int) -> float:
    """Reliability of A_MC at which its noise adds about `ADDED` to the standard error of a correlation over turns that
    were taken in so many states; turns of one state share their error. What is left of an interval then comes of the
    tasks, of which more walks make no more."""
    needed = 1 / (1 + states * ADDED**2)
    return min(max(needed, LEAST_RELIABLE), MOST_RELIABLE)


def expected_reliability(found: Advantages, turns: Sequence[tuple[int, int]], half: int) -> float:
    """What the reliability of A_MC would be if both halves of the walks were as this one.

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


def first_walks(tree: Tree, states: Sequence[int], walks: int, odd: int) -> list[Wanted]:
    """As many walks everywhere, in two rounds: those that come through states of odd depth count there."""
    number = _started(walks)
    return [
        (half, state, number - tree.seen[state][half].count)
        for state in states
        for half in HALVES
        if len(tree.states[state].path) % 2 == odd and tree.seen[state][half].count < number
    ]


def _started(walks: int) -> int:
    return max(1, round(walks * FIRST_SHARE / 2))


def further_walks(
    tree: Tree,
    states: Sequence[int],
    lengths: np.ndarray,
    walks: int,
    share: float,
    doubt: Sequence[float | np.ndarray],
    halves: Sequence[int] = HALVES,
) -> list[Wanted]:
    """What a later round wants.

    The best allocation of walks to independent means is in proportion to sqrt(variance / cost), and the budget that is
    left buys it as far as the walks already taken allow. A state counts once for each turn that was taken in it and
    once for each that led to it.

    Args:
        lengths: ``(S,)`` cost of a walk from each state, in turns.
        walks: walks a state that the whole budget would pay for.
        share: of the budget that is spent after this round.
        doubt: of either half, see `tree.back_up`.
        halves: that get walks.
    """
    rows = np.array(states, dtype=np.int64)
    turns = np.array([len(tree.states[row].visits) * (2 if tree.states[row].path else 1) for row in states])
    chosen = []
    for half in halves:
        spread = back_up(tree, 1 - half, doubt[1 - half]).spread[rows]
        had = np.array([tree.seen[row][half].count for row in rows])
        budget = walks / 2 * share * lengths[rows].sum() - tree.walked[half]
        wanted = np.sqrt(turns * np.nan_to_num(spread) / lengths[rows])
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

"""The tree of states of a batch of episodes, and their values from Monte Carlo rollouts.

A state is a task with the actions and observations since its reset. Siblings with equal histories share states, and a
rollout counts in every state that it passes. Values are backed up: a step into another state of the tree counts with
that state's value, since more rollouts passed that state. Each rollout belongs to one of two independent halves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from alignopsd_trl.turns import Trajectory

HALVES = (0, 1)
LEAST_DOUBT = 0.005  # share of the squared distance between the worst and the best outcome
Step = tuple[str, str]  # an action and the next observation


@dataclass
class State:
    """A state in which at least one played episode took a turn.

    Args:
        parent: the state before; `None` after a reset.
        visits: (trajectory, turn) of the turns taken in this state, as positions in the played batch.
        children: step -> next state, for next states in the tree.
    """

    task: str
    path: tuple[str, ...]
    parent: int | None
    visits: list[tuple[int, int]] = field(default_factory=list)
    children: dict[Step, int] = field(default_factory=dict)


@dataclass
class Seen:
    """Rollouts of one half in a state: their number per child, and the outcomes of those that left the tree there."""

    onward: Counter[int] = field(default_factory=Counter)
    left: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.onward.total() + len(self.left)


class Tree:
    """The states of a batch of episodes, and the rollouts through them.

    Args:
        trajectories: of a batch; all trajectories of a task have the same ``task``.
        value: ``"success"`` or ``"reward"``, the outcome of an episode whose mean is the value of a state.

    Raises:
        ValueError: if the value is success and the environment does not report it.
    """

    def __init__(self, trajectories: Sequence[Trajectory], value: str = "success"):
        self.trajectories, self.value = trajectories, value
        self.outcomes = [outcome(one, value) for one in trajectories]
        self.states: list[State] = []
        self.turns: dict[tuple[int, int], tuple[int, int | None]] = {}  # turn -> state before, state after
        self._roots: dict[tuple[str, str], int] = {}
        for place, trajectory in enumerate(trajectories):
            self._add(place, trajectory)
        self.seen: list[tuple[Seen, Seen]] = [(Seen(), Seen()) for _ in self.states]
        self.rollout_turns = [0, 0]  # by half
        self.begun = [[0, 0] for _ in self.states]  # number of rollouts that started there, by half

    @property
    def taken(self) -> int:
        """Number of Monte Carlo rollouts in the tree."""
        return sum(len(seen.left) for halves in self.seen for seen in halves)

    def _add(self, place: int, trajectory: Trajectory) -> None:
        before, known, path = None, self._roots, ()
        step = (trajectory.task, trajectory.turns[0].prompt_text if trajectory.turns else "")
        for number, turn in enumerate(trajectory.turns):
            state = known.setdefault(step, len(self.states))
            if state == len(self.states):
                self.states.append(State(trajectory.task, path, before))
            if before is not None:
                self.turns[place, number - 1] = (before, state)
            self.turns[place, number] = (state, None)
            self.states[state].visits.append((place, number))
            before, known = state, self.states[state].children
            step, path = (turn.action, turn.observation), (*path, turn.action)

    def add_rollout(self, half: int, start: int, steps: Sequence[Step], outcome: float) -> None:
        """Adds a rollout of `steps` from the state `start` to its outcome."""
        state = start
        self.rollout_turns[half] += len(steps)
        self.begun[start][half] += 1
        for step in steps:
            following = self.states[state].children.get(step)
            if following is None:
                break
            self.seen[state][half].onward[following] += 1
            state = following
        self.seen[state][half].left.append(outcome)


def outcome(one: Trajectory, value: str) -> float:
    """Returns an episode's outcome: its reward, or 1 if it was won and 0 if not."""
    if value == "reward":
        return float(one.reward)
    if one.won is None:
        raise ValueError("this environment does not say who won (Step.won is None); take --value reward")
    return float(one.won)


@dataclass(frozen=True)
class Values:
    """Values of states from Monte Carlo rollouts.

    Args:
        value: ``(S,)`` V; NaN without rollouts.
        variance: ``(S,)`` of its error.
        spread: ``(S,)`` variance of one more rollout's contribution to V.
    """

    value: np.ndarray
    variance: np.ndarray
    spread: np.ndarray


def back_up(tree: Tree, half: int, doubt: float | np.ndarray) -> Values:
    """Computes the values of all states from one half of the rollouts.

    Args:
        doubt: prior variance of a rollout's outcome, one number or ``(S,)``. It enters ``spread`` like one more
            rollout, since a few rollouts with equal outcomes do not prove a variance of 0.
    """
    count = len(tree.states)
    doubts = np.broadcast_to(doubt, count)
    value, variance, spread = (np.full(count, np.nan) for _ in range(3))
    for state in reversed(range(count)):  # a state's number is higher than its parent's
        seen = tree.seen[state][half]
        if not seen.count:
            continue
        values = [(value[child], times) for child, times in seen.onward.items()] + [(out, 1) for out in seen.left]
        value[state] = sum(one * times for one, times in values) / seen.count
        squares = sum(times * (one - value[state]) ** 2 for one, times in values)
        spread[state] = (squares + doubts[state]) / (seen.count + 1)
        below = sum((times / seen.count) ** 2 * variance[child] for child, times in seen.onward.items())
        variance[state] = spread[state] / seen.count + below
    return Values(value, variance, spread)


def doubts(tree: Tree, half: int) -> np.ndarray:
    """Estimates ``(S,)`` the prior variance of a rollout's outcome in each state, from one half and the played
    episodes.

    It uses the rollouts of neighbouring states, since states next to a lost one are most likely lost too, and one more
    rollout with the mean outcome of the group.
    """
    count = np.array([seen[half].count for seen in tree.seen], dtype=np.float64)
    total = np.nan_to_num(back_up(tree, half, 0.0).value) * count
    near, number = _group_means(tree), np.ones(len(tree.states))
    for row, state in enumerate(tree.states):
        for one, other in [] if state.parent is None else [(row, state.parent), (state.parent, row)]:
            near[one] += total[other]
            number[one] += count[other]
    near /= number
    seen = [*tree.outcomes, *(out for halves in tree.seen for out in halves[half].left)] or [0.0]
    low = min(seen)
    high = max(seen) if max(seen) > low else low + 1
    return np.clip((near - low) * (high - near), LEAST_DOUBT * (high - low) ** 2, None)


def _group_means(tree: Tree) -> np.ndarray:
    """Computes ``(S,)`` the mean outcome of all episodes of a state's task."""
    outcomes = defaultdict(list)
    for one, reached in zip(tree.trajectories, tree.outcomes, strict=True):
        outcomes[one.task] += [reached] if one.turns else []
    means = {task: float(np.mean(found)) for task, found in outcomes.items() if found}
    return np.array([means[state.task] for state in tree.states])


@dataclass(frozen=True)
class Advantages:
    """Monte Carlo advantages of turns.

    Args:
        advantage, error: ``(M,)`` A_MC and its standard error, NaN without rollouts.
        halves, variances: ``(2, M)`` A_MC of either half of the rollouts, and the variance of its error.
        before, after: ``(M,)`` V of the state in which the turn was taken, and of the next state.
        rollouts: ``(M,)`` number of rollouts through the state before.
    """

    advantage: np.ndarray
    error: np.ndarray
    halves: np.ndarray
    variances: np.ndarray
    before: np.ndarray
    after: np.ndarray
    rollouts: np.ndarray

    @property
    def known(self) -> np.ndarray:
        return np.isfinite(self.advantage) & np.isfinite(self.error)


def turn_advantages(tree: Tree, episodes: Sequence[Trajectory] | None = None) -> Advantages:
    """Computes A_MC of the turns of some episodes of the tree (by default all), in their order: the mean over both
    halves, each backed up by itself. An episode's outcome stands for V after its last turn."""
    place = {(one.task, one.rollout): number for number, one in enumerate(tree.trajectories)}
    chosen = tree.trajectories if episodes is None else episodes
    turns = [(place[one.task, one.rollout], number) for one in chosen for number in range(len(one.turns))]
    before, after, variance = (np.full((2, len(turns)), np.nan) for _ in range(3))
    for half in HALVES:
        values = back_up(tree, half, doubts(tree, half))
        for row, (trajectory, number) in enumerate(turns):
            state, following = tree.turns[trajectory, number]
            seen = tree.seen[state][half]
            before[half, row], variance[half, row] = values.value[state], values.variance[state]
            if following is None:
                after[half, row] = tree.outcomes[trajectory]
                continue
            after[half, row] = values.value[following]
            share = seen.onward[following] / seen.count if seen.count else 0.0
            # V(state) holds `share` of V(following): the two errors are not independent.
            variance[half, row] += (1 - 2 * share) * values.variance[following]
    halves = after - before
    rollouts = np.array([sum(seen.count for seen in tree.seen[tree.turns[turn][0]]) for turn in turns], dtype=np.int64)
    error = np.sqrt(variance.sum(0)) / 2
    return Advantages(halves.mean(0), error, halves, variance, before.mean(0), after.mean(0), rollouts)

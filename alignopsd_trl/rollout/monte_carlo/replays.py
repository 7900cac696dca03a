"""Plays sibling groups, replays them up to a state and plays Monte Carlo rollouts of the policy from there; says where
rollouts start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.common.statistics import group_means
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.monte_carlo.tree import HALVES, Advantages, Tree, back_up, doubts, outcome, turn_advantages
from alignopsd_trl.rollout.player import Player
from alignopsd_trl.turns import Trajectory, TurnBatch


@dataclass(frozen=True)
class Replays:
    """The means to replay episodes of a round from one of their turns.

    Attributes:
        player: a player with the rollouts' policy and prompts.
        slots: number of episodes that it plays side by side.
        seed: of this round and process.
    """

    player: Player
    slots: int
    seed: int


class ReplayError(UserError):
    """An episode that its row, seed and actions do not reproduce. The message names the task and the difference."""


class MCRollout(NamedTuple):
    """A Monte Carlo rollout: its first state, its steps (an action and the next observation) and its outcome."""

    half: int
    state: int
    steps: tuple[tuple[str, str], ...]
    outcome: float


Portion = Callable[[str, Callable[[], list[MCRollout]]], list[MCRollout]]
"""A cache of portions: (name, play) -> the rollouts of the portion, from a file or from ``play``."""


def play_groups(
    replays: Replays, rows: Sequence[Mapping[str, Any]], siblings: int, quiet: bool = True
) -> list[Trajectory]:
    """Plays sibling groups of the rows, as training does at the optimiser step ``replays.seed``."""
    wanted = [(row, sibling) for row in rows for sibling in range(siblings)]
    played: list[Trajectory] = []
    group = max(replays.slots // siblings, 1) * siblings
    with Bar(len(wanted), "groups", disable=quiet) as progress:
        player = replace(replays.player, progress=progress)
        for first in range(0, len(wanted), group):
            part = wanted[first : first + group]
            seeds = [episode_seeds(row["task_id"], replays.seed, sibling) for row, sibling in part]
            played += player.play([row for row, _ in part], seeds, [row["task_id"] for row, _ in part])
    return played


def take_rollouts(
    replays: Replays,
    trajectories: Sequence[Trajectory],
    rollouts: int,
    *,
    value: str = "success",
    everywhere: bool = False,
    enough: float | None = 1.0,
    kept: Portion = lambda name, play: play(),
    quiet: bool = True,
) -> Tree:
    """Builds the tree of a batch and fills it with Monte Carlo rollouts.

    Args:
        trajectories: played episodes without environment errors.
        rollouts: maximum of rollouts per state on average; a third is even, the rest goes to states with large errors.
        value: ``"success"`` or ``"reward"``, see `Tree`.
        everywhere: whether to measure groups whose rewards are equal, too.
        enough: reliability of A_MC at which rollouts stop; 1 plays them all, `None` is `enough_for`.

    Raises:
        ReplayError: if the environment is not deterministic.
    """
    tree = Tree(trajectories, value)
    states = worth_measuring(tree, everywhere)
    tasks = {tree.states[state].task for state in states}
    verify(replays, [one for one in trajectories if one.task in tasks])
    for number, wanted in enumerate(rounds(tree, states, rollouts, enough), 1):
        parts = list(portions(tree, wanted, replays.slots))
        # All processes of a launch play equally often: a round of generation may hold collectives.
        parts += [[]] * (replays.player.agree(len(parts)) - len(parts))
        with Bar(sum(map(len, parts)), f"Monte Carlo rollouts, round {number}", disable=quiet) as progress:
            # Rollouts need no privileged prompts.
            player = replace(replays.player, progress=progress, until_lost=value == "success")
            for place, starts in enumerate(parts):
                play = partial(roll_out, player, tree, starts, replays.seed + 7919 * place + number)
                for one in kept(f"rollouts_{number}_{place:04d}", play):
                    tree.add_rollout(*one)
    return tree


Start = tuple[int, int, int]  # half, state, number of the rollout among all from this state


def portions(tree: Tree, wanted: Sequence[Wanted], slots: int) -> Iterator[list[Start]]:
    """Cuts the starts of rollouts into portions of at most ``slots``. The deepest states come first, so that rollouts
    of a portion have about equal lengths."""
    starts = [
        (half, state, tree.begun[state][half] + number) for half, state, times in wanted for number in range(times)
    ]
    starts.sort(key=lambda start: (-len(tree.states[start[1]].path), start[1]))
    return (starts[first : first + slots] for first in range(0, len(starts), slots))


def roll_out(player: Player, tree: Tree, starts: Sequence[Start], seed: int) -> list[MCRollout]:
    """Plays rollouts from states of the tree to their ends and leaves out those with an environment error.

    Siblings differ in their ``dynamics_seed``. The rollouts from a state cycle through the seeds of the siblings that
    reached it, across rounds. Values are conditional on these seeds.

    Raises:
        ReplayError: if the first prompt of a rollout differs from the played one.
    """
    torch.manual_seed(seed)
    origins = []
    for half, state, number in starts:
        visits = tree.states[state].visits
        origins.append(visits[(2 * number + half) % len(visits)])
    played = [tree.trajectories[place] for place, _ in origins]
    paths = [tree.states[state].path for _, state, _ in starts]
    finished = play_again(player, played, paths, ["/".join(map(str, start)) for start in starts])
    rollouts = []
    for (half, state, _), (_, number), origin, one in zip(starts, origins, played, finished, strict=True):
        _check_prompt(origin, number, one)
        if not one.failed:
            steps = tuple((turn.action, turn.observation) for turn in one.turns[number:])
            rollouts.append(MCRollout(half, state, steps, outcome(one, tree.value)))
    return rollouts


def play_again(
    player: Player, played: Sequence[Trajectory], paths: Sequence[Sequence[str]], draws: Sequence[str] = ()
) -> list[Trajectory]:
    """Plays episodes again from their first actions, with a label for each that tells its sampling from others'."""
    rows, seeds, tasks = ([getattr(one, name) for one in played] for name in ("row", "seeds", "task"))
    return player.play(rows, seeds, tasks, paths, draws)


def verify(replays: Replays, trajectories: Sequence[Trajectory]) -> None:
    """Replays episodes from their actions, without the policy, and compares the environment's texts and rewards.

    Raises:
        ReplayError: at the first difference.
    """
    again = play_again(replays.player, trajectories, [[turn.action for turn in one.turns] for one in trajectories])
    for one, other in zip(trajectories, again, strict=True):
        _compare(one, other)


def _compare(played: Trajectory, again: Trajectory) -> None:
    if again.failed:
        raise _different(played, len(again.turns), "the answer", "an observation", again.message)
    if again.skill_text != played.skill_text:
        raise ReplayError(
            f"task {played.task!r} was played beside the skills {played.skill_ids} and now finds {again.skill_ids}, or "
            "their texts differ: bank or encoder are not those of the measurement. Choose another folder, or remove it"
        )
    pairs = [*zip(_seen(played), _seen(again), strict=False), (_end(played), _end(again))]
    for (number, what, before), (_, _, now) in pairs:
        if before != now:
            raise _different(played, number, what, before, now)


Said = tuple[int, str, object]  # after how many actions, what the environment said, its text or value


def _seen(one: Trajectory) -> Iterator[Said]:
    yield 0, "the request", one.task_text
    for number, turn in enumerate(one.turns, 1):
        yield number, "the observation", turn.observation
        yield number, "the reward", turn.reward


def _end(one: Trajectory) -> Said:
    return len(one.turns), "(turns, won, score)", (len(one.turns), one.won, one.score)


def _different(one: Trajectory, actions: int, what: str, played: object, again: object) -> ReplayError:
    return ReplayError(
        f"the environment is not deterministic: after {actions} replayed actions of task {one.task!r} "
        f"({one.seeds}), {what} was {played!r} when it was played and is {again!r} now. Fidelity needs an environment "
        "whose episode is a function of the dataset row, the seeds that reset() gets and the actions: draw all chance "
        "from them"
    )


def _check_prompt(played: Trajectory, number: int, again: Trajectory) -> None:
    """Compares the first prompt of a rollout with the played one. A rollout that is lost earlier has no prompt."""
    if again.lost is not None and again.lost <= number and again.lost == played.lost:
        return
    before, now = played.turns[number].prompt_text, again.message or "no prompt: the episode is over"
    if len(again.turns) > number:
        now = again.turns[number].prompt_text
    if now != before:
        raise _different(played, number, "the prompt", before, now)


# Advantages of the turns of a training round


def with_advantages(batch: TurnBatch, trajectories: Sequence[Trajectory], replays: Replays, rollouts: int) -> TurnBatch:
    """Returns a batch with the A_MC of its turns, ``(M,)`` float64, NaN in groups whose rewards are all equal. Every
    process must make the same calls."""
    taken = counted(trajectories)
    found = np.empty(len(batch))
    found[rows_of(taken)] = measured(replays, taken, rollouts, "reward").advantage
    return replace(batch, turn_advantages=torch.from_numpy(found).to(batch.task.device))


def measured(
    replays: Replays, trajectories: Sequence[Trajectory], rollouts: int, value: str, enough: float | None = 1.0
) -> Advantages:
    """Plays Monte Carlo rollouts and keeps the random state of training unchanged."""
    with torch.random.fork_rng():
        return turn_advantages(take_rollouts(replays, trajectories, rollouts, value=value, enough=enough))


def counted(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Returns the trajectories whose turns are in a batch."""
    return [one for one in trajectories if not one.failed and one.turns]


def rows_of(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Returns the rows of trajectories' turns in their batch."""
    return np.array([turn.row for one in trajectories for turn in one.turns], dtype=np.int64)


# Where rollouts start
#
# Every state gets a few at first. Later rounds go where a turn of rollout reduces the error most, and end once A_MC is
# reliable. The outcomes of one half decide the number of rollouts in the *other* half. A state's own outcomes would
# bias its value: one that looked hopeless at first would never be tried again.


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

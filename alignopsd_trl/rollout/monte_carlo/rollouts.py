"""Plays sibling groups, replays them up to a state and plays Monte Carlo rollouts of the policy from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from alignopsd_trl.common.progress import Bar
from alignopsd_trl.rollout.episode import episode_seeds
from alignopsd_trl.rollout.monte_carlo.plan import Wanted, rounds, worth_measuring
from alignopsd_trl.rollout.monte_carlo.tree import Advantages, Tree, outcome, turn_advantages
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


class ReplayError(RuntimeError):
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
        replays: the player of the episodes, with a seed for the sampling.
        trajectories: played episodes without environment errors.
        rollouts: maximum of rollouts per state on average; a third is even, the rest goes to states with large errors.
        value: ``"success"`` or ``"reward"``, see `Tree`.
        everywhere: whether to measure groups whose rewards are equal, too.
        enough: reliability of A_MC at which rollouts stop; 1 plays them all, `None` is `plan.enough_for`.
        kept: a cache of portions.

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

    Args:
        player: has a slot for each rollout.
        seed: of the sampling.

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
    for number in range(replays.player.agree(-(-len(trajectories) // replays.slots))):
        played = trajectories[number * replays.slots : (number + 1) * replays.slots]
        again = play_again(replays.player, played, [[turn.action for turn in one.turns] for one in played])
        for one, other in zip(played, again, strict=True):
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

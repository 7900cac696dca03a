"""Replays played episodes up to a state and plays Monte Carlo rollouts of the policy from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from alignopsd_trl.measure.tree import Tree
from alignopsd_trl.rollout import Player
from alignopsd_trl.turns import StopReason, Trajectory

Result = TypeVar("Result")


class ReplayError(RuntimeError):
    """An episode that its row, seed and actions do not reproduce. The message names the task and the difference."""


@dataclass(frozen=True)
class MCRollout:
    """A Monte Carlo rollout: its first state, its steps (an action and the next observation) and its outcome."""

    half: int
    state: int
    steps: tuple[tuple[str, str], ...]
    outcome: float


def together(agree: Callable[[int], int], act: Callable[[], Result]) -> Result:
    """Calls ``act`` on every process. A `ReplayError` on one process is raised on all.

    Args:
        agree: all-reduce max of a number.
    """
    result: Any = None
    failed: ReplayError | None = None
    try:
        result = act()
    except ReplayError as error:
        failed = error
    if agree(int(failed is not None)):
        raise failed or ReplayError("a replay failed on another process; its own error says where")
    return result


def verify(player: Player, trajectories: Sequence[Trajectory], slots: int) -> None:
    """Replays episodes from their actions, without the policy, and compares the environment's texts and rewards.

    Args:
        slots: number of the player's environments.

    Raises:
        ReplayError: at the first difference.
    """
    for number in range(player.agree(-(-len(trajectories) // slots))):
        played = trajectories[number * slots : (number + 1) * slots]
        again = player.play(
            [one.row for one in played],
            [one.seeds for one in played],
            [one.task for one in played],
            [[turn.action for turn in one.turns] for one in played],
        )
        together(player.agree, lambda played=played, again=again: [*map(_compare, played, again)])


def _compare(played: Trajectory, again: Trajectory) -> None:
    if again.failed:
        raise _different(played, len(again.turns), "the answer", "an observation", again.message)
    if again.task_text != played.task_text:
        raise _different(played, 0, "the request", played.task_text, again.task_text)
    if again.skill_text != played.skill_text:
        raise ReplayError(
            f"task {played.task!r} was played beside the skills {played.skill_ids} and now finds {again.skill_ids}, or "
            "their texts differ: bank or encoder are not those of the measurement. Choose another folder, or remove it"
        )
    for number, (turn, other) in enumerate(zip(played.turns, again.turns, strict=False), 1):
        if other.observation != turn.observation:
            raise _different(played, number, "the observation", turn.observation, other.observation)
        if other.reward != turn.reward:
            raise _different(played, number, "the reward", turn.reward, other.reward)
    ends = [(len(one.turns), one.won, one.score) for one in (played, again)]
    if ends[0] != ends[1]:
        raise _different(played, len(played.turns), "(turns, won, score)", *ends)


def _different(one: Trajectory, actions: int, what: str, played: object, again: object) -> ReplayError:
    return ReplayError(
        f"the environment is not deterministic: after {actions} replayed actions of task {one.task!r} "
        f"({one.seeds}), {what} was {played!r} when it was played and is {again!r} now. Fidelity needs an environment "
        "whose episode is a function of the dataset row, the seeds that reset() gets and the actions: draw all chance "
        "from them"
    )


Start = tuple[int, int, int]  # half, state, number of the rollout among all from this state


def portions(tree: Tree, wanted: Sequence[tuple[int, int, int]], slots: int) -> list[list[Start]]:
    """Cuts the starts of rollouts into portions of at most ``slots``. The deepest states come first, so that rollouts
    of a portion have about equal lengths.

    Args:
        wanted: (half, state, number of rollouts).
    """
    starts = [
        (half, state, tree.begun[state][half] + number) for half, state, times in wanted for number in range(times)
    ]
    starts.sort(key=lambda start: (-len(tree.states[start[1]].path), start[1]))
    return [starts[first : first + slots] for first in range(0, len(starts), slots)]


def roll_out(
    player: Player,
    trajectories: Sequence[Trajectory],
    tree: Tree,
    starts: Sequence[Start],
    outcome: Callable[[Trajectory], float],
    seed: int,
) -> list[MCRollout]:
    """Plays rollouts from states of the tree to their ends and leaves out those with an environment error.

    Siblings differ in their ``dynamics_seed``. The rollouts from a state cycle through the seeds of the siblings that
    reached it, across rounds. Values are conditional on these seeds.

    Args:
        player: has a slot for each rollout.
        outcome: returns the outcome of a finished episode.
        seed: of the sampling.

    Raises:
        ReplayError: if the first prompt of a rollout differs from the played one.
    """
    torch.manual_seed(seed)
    origins = []
    for half, state, number in starts:
        visits = tree.states[state].visits
        origins.append(visits[(2 * number + half) % len(visits)])
    played = [trajectories[place] for place, _ in origins]
    finished = player.play(
        [one.row for one in played],
        [one.seeds for one in played],
        [one.task for one in played],
        [tree.states[state].path for _, state, _ in starts],
        ["/".join(map(str, start)) for start in starts],
    )
    rollouts = []
    for (half, state, _), (place, number), one in zip(starts, origins, finished, strict=True):
        _check(trajectories[place], number, one)
        if not one.failed:
            steps = tuple((turn.action, turn.observation) for turn in one.turns[number:])
            rollouts.append(MCRollout(half, state, steps, outcome(one)))
    return rollouts


def _check(played: Trajectory, number: int, again: Trajectory) -> None:
    """Compares the first prompt of a rollout with the played one. A rollout that is lost earlier has no prompt."""
    if again.stop is StopReason.ENVIRONMENT_ERROR and len(again.turns) <= number:
        raise _different(played, number, "the answer", played.turns[number].prompt_text, again.message)
    if again.lost is not None and again.lost <= number and played.lost == again.lost:
        return
    prompt = again.turns[number].prompt_ids if len(again.turns) > number else []
    if prompt != played.turns[number].prompt_ids:
        text = again.turns[number].prompt_text if prompt else "no prompt: the episode is over"
        raise _different(played, number, "the prompt", played.turns[number].prompt_text, text)

"""Replays states of played episodes and lets the policy walk on from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from alignopsd_trl.fidelity.tree import Tree
from alignopsd_trl.rollout import Player
from alignopsd_trl.turns import StopReason, Trajectory

Result = TypeVar("Result")


class ReplayError(RuntimeError):
    """An environment whose episodes can't be played again from row, seed and actions. The message names the task and
    what differed."""


@dataclass(frozen=True)
class Walk:
    """One walk: where it began and what came of it. ``steps`` are actions with the observations that answered them."""

    half: int
    state: int
    steps: tuple[tuple[str, str], ...]
    outcome: float

    def to_list(self) -> list:
        return list(asdict(self).values())

    @classmethod
    def of(cls, content: Sequence) -> Walk:
        half, state, steps, outcome = content
        return cls(half, state, tuple((action, observation) for action, observation in steps), outcome)


def together(agree: Callable[[int], int], act: Callable[[], Result]) -> Result:
    """What ``act`` returns. A replay that fails on one process ends the measurement on all, in the same place.

    Args:
        agree: maximum of a number over all processes.
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


Outcome = Callable[[Trajectory], float]


def verify(player: Player, trajectories: Sequence[Trajectory], slots: int) -> None:
    """Plays episodes again from their actions, without the policy, and compares what the environment said.

    Args:
        slots: of the player's environments.

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
        together(player.agree, lambda played=played, again=again: _compare_all(played, again))


def _compare_all(played: Sequence[Trajectory], again: Sequence[Trajectory]) -> None:
    for one, other in zip(played, again, strict=True):
        _compare(one, other)


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


Start = tuple[int, int, int]  # half, state, number of the walk among all that set out there


def portions(tree: Tree, wanted: Sequence[tuple[int, int, int]], slots: int) -> list[list[Start]]:
    """Starts of single walks in portions of at most ``slots``, deepest states first, so that walks of like length go
    together.

    Args:
        wanted: (half, state, how many).
    """
    starts = [
        (half, state, tree.begun[state][half] + number) for half, state, times in wanted for number in range(times)
    ]
    starts.sort(key=lambda start: (-len(tree.states[start[1]].path), start[1]))
    return [starts[first : first + slots] for first in range(0, len(starts), slots)]


def walk(
    player: Player, trajectories: Sequence[Trajectory], tree: Tree, starts: Sequence[Start], outcome: Outcome
) -> list[Walk]:
    """Walks from states of the tree to the end. Those that the environment fails are left out.

    Chance that siblings do not share (their ``dynamics_seed``) is chance for the policy too: walks take turns with the
    seeds of those that came to the state, on over the rounds. Values are conditional on these seeds.

    Args:
        player: with a slot a walk.
        outcome: of a finished episode.

    Raises:
        ReplayError: where the prompt that a walk begins with is not the one that was played.
    """
    origins = []
    for half, state, number in starts:
        visits = tree.states[state].visits
        origins.append(visits[(2 * number + half) % len(visits)])
    played = [trajectories[place] for place, _ in origins]
    walked = player.play(
        [one.row for one in played],
        [one.seeds for one in played],
        [one.task for one in played],
        [tree.states[state].path for _, state, _ in starts],
    )
    walks = []
    for (half, state, _), (place, number), one in zip(starts, origins, walked, strict=True):
        _check(trajectories[place], number, one)
        if not one.failed:
            steps = tuple((turn.action, turn.observation) for turn in one.turns[number:])
            walks.append(Walk(half, state, steps, outcome(one)))
    return walks


def _check(played: Trajectory, number: int, walked: Trajectory) -> None:
    """The prompt that a walk began with is the one that was played; there is none where all is lost before."""
    if walked.stop is StopReason.ENVIRONMENT_ERROR and len(walked.turns) <= number:
        raise _different(played, number, "the answer", played.turns[number].prompt_text, walked.message)
    if walked.lost is not None and walked.lost <= number and played.lost == walked.lost:
        return
    again = walked.turns[number].prompt_ids if len(walked.turns) > number else []
    if again != played.turns[number].prompt_ids:
        text = walked.turns[number].prompt_text if again else "no prompt: the episode is over"
        raise _different(played, number, "the prompt", played.turns[number].prompt_text, text)

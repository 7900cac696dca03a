"""Plays groups and rollouts, assigns every variant's credit and joins both, without files (see `session`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from alignopsd_trl.measure.mc_rollouts import MCRollout, portions, roll_out, together, verify
from alignopsd_trl.measure.metrics import Turns
from alignopsd_trl.measure.plan import rounds, worth_measuring
from alignopsd_trl.measure.tree import HALVES, Advantages, Tree, advantages, doubts
from alignopsd_trl.measure.variants import CachedTeacher, Variant, turn_credit
from alignopsd_trl.methods import Credit, Teacher, checked_credit
from alignopsd_trl.rollout import Player, episode_seeds
from alignopsd_trl.turns import Trajectory, Turn, TurnBatch


def _won(one: Trajectory) -> float:
    if one.won is None:
        raise ValueError("this environment does not know who won; measure against value='reward'")
    return float(one.won)


OUTCOMES: dict[str, Callable[[Trajectory], float]] = {"success": _won, "reward": lambda one: float(one.reward)}
"""Functions that return an episode's outcome. The mean outcome is the value of a state."""

Bars = Callable[[int, str], AbstractContextManager[Callable[..., None]]]
"""(episodes, title) -> a progress bar."""
Portion = Callable[[str, Callable[[], list[MCRollout]]], list[MCRollout]]
"""A cache of portions: (name, play) -> the rollouts of the portion, from a file or from ``play``."""


def silent(total: int, title: str) -> AbstractContextManager[Callable[..., None]]:
    return nullcontext(lambda ended, turns=0: None)


@dataclass
class Bench:
    """A policy in its environment, as the measurement needs it.

    Args:
        player: plays episodes of the policy at the training temperature, with skills as in training.
        slots: number of episodes that it plays side by side.
        teacher: the privileged view of the same policy; `None` if no method needs it.
        score: returns log-probs ``(M, L)`` of a batch's responses under their own prompts.
        pad_id: of the tokenizer.
        device: of the model.
    """

    player: Player
    slots: int
    teacher: Teacher | None
    score: Callable[[TurnBatch], torch.Tensor] | None
    pad_id: int
    device: torch.device | str = "cpu"
    bars: Bars = silent

    def rollout_player(self, progress: Callable[..., None], until_lost: bool) -> Player:
        """Makes the player of Monte Carlo rollouts, which needs no privileged prompts."""
        return replace(self.player, progress=progress, privileged=False, until_lost=until_lost)


def play_groups(bench: Bench, rows: Sequence[Mapping[str, Any]], siblings: int, step: int = 0) -> list[Trajectory]:
    """Plays sibling groups of the rows, as training does at an optimiser step."""
    wanted = [(row, sibling) for row in rows for sibling in range(siblings)]
    played: list[Trajectory] = []
    group = max(bench.slots // siblings, 1) * siblings
    with bench.bars(len(wanted), "groups") as progress:
        player = replace(bench.player, progress=progress)
        for first in range(0, len(wanted), group):
            part = wanted[first : first + group]
            seeds = [episode_seeds(row["task_id"], step, sibling) for row, sibling in part]
            played += player.play([row for row, _ in part], seeds, [row["task_id"] for row, _ in part])
    return played


def take_rollouts(
    bench: Bench,
    trajectories: Sequence[Trajectory],
    rollouts: int,
    *,
    value: str = "success",
    everywhere: bool = False,
    enough: float | None = 1.0,
    seed: int = 0,
    kept: Portion = lambda name, play: play(),
) -> Tree:
    """Builds the tree of a batch and fills it with Monte Carlo rollouts.

    Args:
        trajectories: played episodes without environment errors.
        rollouts: maximum of rollouts per state on average; a third is even, the rest goes to states with large errors.
        value: a key of `OUTCOMES`.
        everywhere: whether to measure groups whose rewards are equal, too.
        enough: reliability of A_MC at which rollouts stop; 1 plays them all, `None` is `plan.enough_for`.
        kept: a cache of portions.

    Raises:
        ReplayError: if the environment is not deterministic.
    """
    tree, outcome = Tree(trajectories), OUTCOMES[value]
    states = worth_measuring(tree, trajectories, everywhere)
    tasks = {tree.states[state].task for state in states}
    verify(bench.player, [one for one in trajectories if one.task in tasks], bench.slots)
    ends, until_lost, agree = [outcome(one) for one in trajectories], value == "success", bench.player.agree
    for number, wanted in enumerate(rounds(tree, trajectories, states, ends, rollouts, enough, until_lost), 1):
        parts = portions(tree, wanted, bench.slots)
        # All processes of a launch play equally often: a round of generation may hold collectives.
        parts += [[]] * (agree(len(parts)) - len(parts))
        with bench.bars(sum(map(len, parts)), f"Monte Carlo rollouts, round {number}") as progress:
            player = bench.rollout_player(progress, until_lost)
            for place, starts in enumerate(parts):
                own = seed + 7919 * place + number
                play = partial(roll_out, player, trajectories, tree, starts, outcome, own)
                for one in together(agree, partial(kept, f"rollouts_{number}_{place:04d}", play)):
                    tree.add_rollout(one.half, one.state, one.steps, one.outcome)
    return tree


def turn_advantages(
    tree: Tree,
    trajectories: Sequence[Trajectory],
    value: str = "success",
    episodes: Sequence[Trajectory] | None = None,
) -> Advantages:
    """Computes A_MC of the turns of some episodes, in their order.

    Args:
        trajectories: the tree's trajectories.
        episodes: some of them; all by default.
    """
    row = {(one.task, one.rollout): number for number, one in enumerate(trajectories)}
    chosen = trajectories if episodes is None else episodes
    place = [(row[one.task, one.rollout], turn.number) for one in chosen for turn in one.turns]
    outcome = OUTCOMES[value]
    ends = [outcome(one) for one in trajectories]
    return advantages(tree, place, ends, [doubts(tree, half, ends) for half in HALVES])


@dataclass
class Credited:
    """A batch with every variant's credit. Its rows are the turns of its ``episodes``, in order."""

    batch: TurnBatch
    episodes: Sequence[Trajectory]
    credits: dict[str, Credit]

    def column(self, label: str) -> np.ndarray:
        return turn_credit(self.credits[label], self.batch).cpu().numpy()


def assign_credit(
    bench: Bench,
    trajectories: Sequence[Trajectory],
    variants: Sequence[Variant],
    tasks_per_batch: int,
    seed: int = 0,
    step: int = 0,
) -> Iterator[Credited]:
    """Assigns every variant's credit in batches of ``tasks_per_batch`` sibling groups, the number of a training
    round."""
    order = list(dict.fromkeys(one.task for one in trajectories))
    methods = [variant.method for variant in variants]
    with bench.bars(len(order), "credit") as progress:
        for first in range(0, len(order), tasks_per_batch):
            chosen = set(order[first : first + tasks_per_batch])
            episodes = sorted(
                (one for one in trajectories if one.task in chosen), key=lambda one: (one.task, one.rollout)
            )
            batch = TurnBatch.of(episodes, bench.pad_id, bench.device)
            torch.manual_seed(seed + first)
            if bench.score is not None and any(method.needs_student_log_probs for method in methods):
                batch = replace(batch, student_log_probs=bench.score(batch))
            assert bench.teacher is not None, "a bench whose variants get credit has a teacher"
            teacher = CachedTeacher(bench.teacher, batch)
            yield Credited(
                batch, episodes, {one.label: checked_credit(one.method, batch, teacher, step) for one in variants}
            )
            progress(len(chosen))


def columns(
    episodes: Sequence[Trajectory], tree: Tree, trajectories: Sequence[Trajectory], outcome: np.ndarray, value: str
) -> tuple[Turns, np.ndarray, Advantages]:
    """Returns the measured turns for `metrics`, their mask among all turns, and A_MC of all turns.

    Args:
        outcome: the outcome advantage of each turn.
    """
    found = turn_advantages(tree, trajectories, value, episodes)
    known = np.isfinite(found.advantage) & np.isfinite(found.error)
    owners = [one for one in episodes for _ in one.turns]
    owners = [one for one, keep in zip(owners, known, strict=True) if keep]
    names = [(one.task, one.rollout) for one in owners]
    task, trajectory = _numbers([name for name, _ in names]), _numbers(names)
    columns = found.advantage[known], found.error[known], found.halves[:, known]
    return Turns(task, trajectory, outcome[known], *columns), known, found


@dataclass(frozen=True)
class Measurement:
    """Episodes with every variant's credit and A_MC of their turns.

    Args:
        everyone, played: all episodes, and those without environment errors.
        tree: with the Monte Carlo rollouts.
        credited: batches of sibling groups with their credit.
        outcome: the outcome advantage of each turn.
        turns, known, found: see `columns`.
    """

    everyone: Sequence[Trajectory]
    played: Sequence[Trajectory]
    tree: Tree
    credited: Sequence[Credited]
    outcome: np.ndarray
    turns: Turns
    known: np.ndarray
    found: Advantages

    @property
    def turns_of(self) -> list[tuple[Trajectory, Turn]]:
        """Pairs of episode and turn, in the order of the columns."""
        return [(one, turn) for part in self.credited for one in part.episodes for turn in one.turns]

    def credit(self, label: str) -> np.ndarray:
        """Returns a variant's credit of the measured turns."""
        return np.concatenate([part.column(label) for part in self.credited])[self.known]


def _numbers(names: Iterable[Any]) -> np.ndarray:
    place: dict[Any, int] = {}
    return np.array([place.setdefault(name, len(place)) for name in names], dtype=np.int64)

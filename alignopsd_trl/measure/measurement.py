"""Measures tasks: episodes, Monte Carlo rollouts from their states, and every variant's credit of their turns.

Episodes and rollouts are kept in a folder for later commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from alignopsd_trl.common.files import plain, read_json, write_json, write_text
from alignopsd_trl.common.progress import Bar
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.kept import NotKept, decoded, encoded
from alignopsd_trl.measure.setup import Session
from alignopsd_trl.measure.table import CREDIT, turn_table
from alignopsd_trl.measure.variants import CachedTeacher, turn_credit
from alignopsd_trl.methods import checked_credit, grpo
from alignopsd_trl.rollout.monte_carlo.rollouts import ReplayError, play_groups, take_rollouts
from alignopsd_trl.rollout.monte_carlo.tree import Tree, outcome, turn_advantages
from alignopsd_trl.runs.configuration import differences
from alignopsd_trl.turns import Trajectory, TurnBatch

IDENTITY = "identity.json"
GAPS = "token_identity_gaps"
"""The column of the sums of each turn's identity gaps, from the first method that computes them."""


class Cache:
    """Episodes and rollouts in a folder.

    Args:
        identity: settings that the content depends on.

    Raises:
        ValueError: if the folder holds the parts of another measurement, or of one that is not known.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        self.folder, self._identity = folder, plain(identity)
        remedy = "choose another --output or remove the folder"
        before = read_json(folder / IDENTITY)
        if not isinstance(before, dict):
            if [*folder.glob("*.json"), *folder.glob("*.pkl")]:
                raise ValueError(f"{folder} holds files without a whole {IDENTITY}, which says whose; {remedy}")
            before = self._identity
        if changed := differences(before, self._identity):
            shown = [f"{name}={there!r}, this one has {here!r}" for name, (there, here) in changed.items()]
            raise ValueError(f"{folder.parent} holds a measurement with {'; '.join(shown)}; {remedy}")

    def take(self, name: str, play: Callable[[], list[Any]]) -> list[Any]:
        """Returns the content of a name; plays it if the folder has none.

        A value of a type that only code could bring back is not kept: another start plays it again.

        Raises:
            ValueError: for a damaged file.
        """
        path = self.folder / f"{name}.json"
        with contextlib.suppress(FileNotFoundError), setup():
            try:
                return list(decoded(json.loads(path.read_text(encoding="utf-8"))))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{path} is damaged ({error!r:.80}); remove it, and it is played again") from error
        played = play()  # played first: an error leaves the folder free for another measurement
        write_json(self.folder / IDENTITY, self._identity)
        try:
            write_text(path, json.dumps(encoded(played)))
        except NotKept as error:
            print(f"{path} is not kept, since it holds {error}; another start plays it again", file=sys.stderr)
        return played


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Measurement:
    """Episodes with every variant's credit and A_MC of their turns.

    Args:
        everyone, played: all episodes, and those without environment errors.
        tree: with the Monte Carlo rollouts.
        table: see `table`.
    """

    everyone: Sequence[Trajectory]
    played: Sequence[Trajectory]
    tree: Tree
    table: pd.DataFrame


def measured(session: Session, rows: Sequence[Mapping[str, Any]], cache: Cache) -> Measurement:
    """Plays sibling groups of the rows and Monte Carlo rollouts from their states, and assigns every variant's
    credit."""
    asked = session.arguments
    torch.manual_seed(asked.seed)

    def play() -> list[Trajectory]:
        found = play_groups(session.replays, rows, session.config.num_generations, asked.quiet)
        with setup():
            playable(found, asked.value)
        return found

    everyone = cache.take("played", play)
    played = playable(everyone, asked.value)
    choices = {name: getattr(asked, name) for name in ("value", "everywhere", "enough", "quiet")}
    try:
        tree = take_rollouts(session.replays, played, asked.rollouts, **choices, kept=cache.take)
    except ReplayError as error:
        raise ReplayError(f"{error}; what was played is kept in {cache.folder}, remove that after a change") from error
    return Measurement(everyone, played, tree, assign_credit(session, tree))


def assign_credit(session: Session, tree: Tree) -> pd.DataFrame:
    """Assigns every variant's credit in batches of ``tasks_per_batch`` sibling groups, the number of a training
    round. Returns the table of the turns."""
    asked, tables = session.arguments, []
    order = list(dict.fromkeys(one.task for one in tree.trajectories))
    with Bar(len(order), "credit", disable=asked.quiet) as progress:
        for first in range(0, len(order), asked.tasks_per_batch):
            chosen = order[first : first + asked.tasks_per_batch]
            episodes = [one for one in tree.trajectories if one.task in chosen]
            torch.manual_seed(asked.seed + first)
            tables.append(_credited(session, tree, sorted(episodes, key=lambda one: (one.task, one.rollout))))
            progress(len(chosen))
    return pd.concat(tables, ignore_index=True)


def _credited(session: Session, tree: Tree, episodes: Sequence[Trajectory]) -> pd.DataFrame:
    methods, step = session.variants, session.arguments.step
    batch = TurnBatch.of(episodes, session.tokenizer.pad_token_id, session.model.device)
    if any(method.needs_student_log_probs for method in methods.values()):
        batch = replace(batch, student_log_probs=session.score(batch))
    teacher = CachedTeacher(session.teacher)
    credits = {label: checked_credit(method, batch, teacher, step) for label, method in methods.items()}
    sides = grpo.outcome(batch, session.config).advantage.cpu().numpy()
    table = turn_table(episodes, turn_advantages(tree, episodes), sides)
    table = table.assign(**{CREDIT + label: turn_credit(one, batch).cpu().numpy() for label, one in credits.items()})
    gaps = next((one.trace[GAPS] for one in credits.values() if GAPS in one.trace), None)
    if gaps is None:
        return table
    return table.assign(**{GAPS: [0.0 if row is None else float(np.sum(row, dtype=np.float64)) for row in gaps]})


def playable(played: Sequence[Trajectory], value: str) -> list[Trajectory]:
    """Returns the episodes that can be measured.

    Raises:
        ValueError: if there are none, or their environment does not report the value.
    """
    kept = [one for one in played if not one.failed and one.turns]
    if not kept:
        why = next((one.message for one in played if one.message), "no prompt fits max_prompt_length")
        raise ValueError(f"every episode failed; the first: {why}")
    for one in kept:
        outcome(one, value)
    return kept

"""Measures with a cache folder, which keeps episodes and Monte Carlo rollouts for later commands."""

from __future__ import annotations

import argparse
import pickle
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.mc_rollouts import ReplayError
from alignopsd_trl.measure.measurement import Bench, Measurement, assign_credit, columns, play_groups, take_rollouts
from alignopsd_trl.measure.setup import Subject, digest
from alignopsd_trl.measure.variants import Variant
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.runs.files import plain, read_json, write_bytes, write_json
from alignopsd_trl.runs.folder import differences
from alignopsd_trl.turns import Trajectory


class Cache:
    """Episodes and rollouts in a folder, with the CPU seconds of all commands that used it.

    Args:
        identity: settings that the content depends on.
        clock: returns the CPU seconds of this command so far.

    Raises:
        ValueError: if the folder holds the parts of another measurement.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], clock: Callable[[], float]):
        self.folder, self._identity, self._clock = folder, plain(identity), clock
        before = read_json(folder / "identity.json") or self._identity
        if changed := differences(before, self._identity):
            shown = [f"{name}={there!r}, this one has {here!r}" for name, (there, here) in changed.items()]
            raise ValueError(
                f"{folder.parent} holds a measurement with {'; '.join(shown)}; choose another --output or remove the "
                "folder"
            )
        self._before = read_json(folder / "cpu_seconds.json") or 0.0

    def take(self, name: str, play: Callable[[], list[Any]]) -> list[Any]:
        """Returns the content of a name; plays it if the folder has none."""
        path = self.folder / f"{name}.pkl"
        if not path.is_file():
            played = play()  # played first: an error leaves the folder free for another measurement
            write_json(self.folder / "identity.json", self._identity)
            write_bytes(path, pickle.dumps(played))
            self.cpu_seconds()
        return pickle.loads(path.read_bytes())

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all commands; an interrupted one counts up to its last `take`."""
        total = self._before + self._clock()
        write_json(self.folder / "cpu_seconds.json", total)
        return total


def measured(
    arguments: argparse.Namespace,
    subject: Subject,
    bench: Bench,
    variants: Sequence[Variant],
    rows: Sequence[Mapping[str, Any]],
    cache: Cache,
) -> Measurement:
    """Plays sibling groups of the rows and Monte Carlo rollouts from their states, and assigns every variant's
    credit."""
    torch.manual_seed(arguments.seed)

    def play() -> list[Trajectory]:
        found = play_groups(bench, rows, subject.config.num_generations, arguments.seed)
        with setup():
            playable(found, arguments.value)
        return found

    everyone = cache.take("played", play)
    played = playable(everyone, arguments.value)
    choices = {name: getattr(arguments, name) for name in ("value", "everywhere", "enough", "seed")}
    try:
        tree = take_rollouts(bench, played, arguments.rollouts, **choices, kept=cache.take)
    except ReplayError as error:
        raise ReplayError(f"{error}; what was played is kept in {cache.folder}, remove that after a change") from error
    credited = list(assign_credit(bench, played, variants, arguments.tasks_per_batch, arguments.seed, arguments.step))
    sides = np.concatenate([outcome(one.batch, subject.config).advantage.cpu().numpy() for one in credited])
    episodes = [one for part in credited for one in part.episodes]
    return Measurement(
        everyone, played, tree, credited, sides, *columns(episodes, tree, played, sides, arguments.value)
    )


def playable(played: Sequence[Trajectory], value: str) -> list[Trajectory]:
    """Returns the episodes that can be measured.

    Raises:
        ValueError: if there are none, or ``value`` is success and their environment does not report it.
    """
    kept = [one for one in played if not one.failed and one.turns]
    if not kept:
        why = next((one.message for one in played if one.message), "no prompt fits max_prompt_length")
        raise ValueError(f"every episode failed; the first: {why}")
    if value == "success" and any(one.won is None for one in kept):
        raise ValueError("this environment does not say who won (Step.won is None); take --value reward")
    return kept


def draw_tasks(dataset: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Draws ``count`` rows of a split without replacement."""
    if count > len(dataset):
        raise ValueError(f"tasks={count} is more than the {len(dataset)} tasks of the split; ask for fewer")
    order = np.random.default_rng(seed).permutation(len(dataset))[:count]
    return [dict(dataset[int(row)]) for row in order]


_ASKED = ("environment", "environment_options", "tasks", "rollouts", "split", "value", "everywhere", "seed", "slots")
_ASKED += ("enough", "skill_bank")
_PLAYED = ("num_generations", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PLAYED += ("max_completion_length", "environment_time_limit", "skill_budget", *PlayOptions.names())


def identity_of(arguments: argparse.Namespace, subject: Subject, skills_in_rollout: bool) -> dict[str, Any]:
    """Returns the settings that determine episodes and rollouts, without device and batch size, which only assign
    random numbers. A replay compares the retrieved skills, which may depend on the encoder."""
    return {
        **{name: getattr(arguments, name) for name in _ASKED},
        **{name: getattr(subject.config, name) for name in _PLAYED},
        "skills_in_rollout": skills_in_rollout,
        "weights": subject.checksum(),
        "chat_template": digest(subject.tokenizer.chat_template),
    }


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)

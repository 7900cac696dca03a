"""Holds the turn credit of methods against Monte Carlo advantages of the same turns.

    python -m alignopsd_trl.fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd \\
        --tasks 8 --walks 12 --output outputs/fidelity

No trainer involved; the environment must be deterministic. What was played is kept in the output folder, so that a
measurement that was cut off goes on, and one with other methods or ``--vary`` plays no rollouts again.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alignopsd_trl.fidelity import report
from alignopsd_trl.fidelity.arguments import read_arguments, read_set
from alignopsd_trl.fidelity.mc_rollouts import MCRollout, ReplayError
from alignopsd_trl.fidelity.measure import (
    Bench,
    Measurement,
    assign_credit,
    columns,
    play_groups,
    take_rollouts,
)
from alignopsd_trl.fidelity.metrics import agreement, by_kind, kinds, reliability
from alignopsd_trl.fidelity.pooling import pool
from alignopsd_trl.fidelity.setup import Settings, Subject, bank_of, environment_preset, make_bench, usable_device
from alignopsd_trl.fidelity.variants import Variant, make_variants, read_vary
from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.records import write_records
from alignopsd_trl.turns import Trajectory


class Kept:
    """Played episodes and rollouts in the output folder, and the CPU seconds of all commands that worked on it.

    Args:
        clock: CPU seconds of this command so far.

    Raises:
        ValueError: if the folder holds those of another measurement.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], clock: Callable[[], float]):
        self.folder, self._clock = folder, clock
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "identity.json"
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            now = json.loads(json.dumps(identity))
            if changed := [name for name in now | before if now.get(name) != before.get(name)]:
                told = [f"{name}={before.get(name)!r}, this one has {now.get(name)!r}" for name in changed]
                raise ValueError(
                    f"{folder.parent} holds a measurement with {'; '.join(told)}; choose another --output or remove "
                    "the folder"
                )
        self._identity = path, json.dumps(identity, indent=2).encode()
        self._seconds = folder / "cpu_seconds.json"
        self._before = json.loads(self._seconds.read_text()) if self._seconds.is_file() else 0.0

    def trajectories(self, play: Callable[[], list[Trajectory]], name: str = "played") -> list[Trajectory]:
        path = self.folder / f"{name}.pkl"
        if not path.is_file():
            played = play()  # what can't be measured raises, and does not bind the folder
            _write(*self._identity)
            _write(path, pickle.dumps(played))
            self.cpu_seconds()
        return pickle.loads(path.read_bytes())

    def rollouts(self, name: str, play: Callable[[], list[MCRollout]]) -> list[MCRollout]:
        path = self.folder / f"{name}.json"
        if not path.is_file():
            _write(path, json.dumps([one.to_list() for one in play()]).encode())
            self.cpu_seconds()
        return [MCRollout.of(content) for content in json.loads(path.read_text(encoding="utf-8"))]

    def cpu_seconds(self) -> float:
        """Of all commands so far; one that was cut off counts up to what it kept last."""
        total = self._before + self._clock()
        _write(self._seconds, json.dumps(total).encode())
        return total


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def command(argv: Sequence[str] | None = None) -> None:
    """`main` as a command of its own: what a user can mend is told in a few lines."""
    with reported("alignopsd fidelity", quietly=True, resumes=""):
        main(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures or pools, prints the page and leaves the files; returns what is in the JSON file."""
    arguments, began = read_arguments(argv), cpu_seconds()
    if arguments.pool:
        with setup():
            return pool(arguments.pool, arguments.output)
    argv = sys.argv[1:] if argv is None else argv
    shown = "    python -m alignopsd_trl.fidelity " + shlex.join(map(str, argv))
    with setup():
        subject, bench, variants = prepare(arguments)
    return _measure(arguments, shown, subject, bench, variants, began)


def prepare(arguments: argparse.Namespace, skilled: bool = False) -> tuple[Subject, Bench, list[Variant]]:
    """What the arguments name; those that were left open are filled in.

    Args:
        skilled: skills are retrieved even if no method asks for them.
    """
    arguments.device = usable_device(arguments.device)
    methods = [name.strip() for name in arguments.methods.split(",") if name.strip()]
    settings = Settings(arguments.output, arguments.environment, read_set(arguments.set), arguments.device)
    variants = make_variants(settings, methods, [one for text in arguments.vary for one in read_vary(text)])
    config = variants[0].method.config
    subject = Subject.load(
        arguments.model,
        arguments.environment,
        arguments.environment_options,
        config,
        arguments.dtype,
        arguments.device,
        arguments.split,
    )
    defaults = environment_preset(arguments.environment)
    skilled = skilled or any(one.method.needs_teacher or one.method.skills_in_rollout for one in variants)
    arguments.skill_bank = bank_of(subject.suite, arguments.skill_bank) if skilled else None
    arguments.encoder = (arguments.encoder or defaults.get("encoder", "lexical")) if skilled else None
    arguments.tasks_per_batch = arguments.tasks_per_batch or defaults.get("tasks_per_round", arguments.tasks)
    bench = make_bench(
        subject,
        [variant.method for variant in variants],
        arguments.slots,
        arguments.batch_size,
        arguments.skill_bank,
        arguments.encoder,
        arguments.quiet,
    )
    return subject, bench, variants


def measured(
    arguments: argparse.Namespace,
    subject: Subject,
    bench: Bench,
    variants: Sequence[Variant],
    rows: Sequence[Mapping[str, Any]],
    kept: Kept,
) -> Measurement:
    """Plays sibling groups of the rows and Monte Carlo rollouts of them, and asks every variant for credit."""
    torch.manual_seed(arguments.seed)

    def play() -> list[Trajectory]:
        found = play_groups(bench, rows, subject.config.num_generations, arguments.seed)
        with setup():
            playable(found, arguments.value)
        return found

    everyone = kept.trajectories(play)
    played = playable(everyone, arguments.value)
    choices = {name: getattr(arguments, name) for name in ("value", "everywhere", "enough", "seed")}
    try:
        tree = take_rollouts(bench, played, arguments.walks, **choices, kept=kept.rollouts)
    except ReplayError as error:
        raise ReplayError(f"{error}; what was played is kept in {kept.folder}, remove that after a change") from error
    credited = list(assign_credit(bench, played, variants, arguments.tasks_per_batch, arguments.seed, arguments.step))
    sides = [outcome(one.batch, subject.config).advantage.cpu().numpy() for one in credited]
    return Measurement(
        everyone, played, tree, credited, sides, *columns(credited, tree, played, sides, arguments.value)
    )


def _measure(
    arguments: argparse.Namespace,
    command: str,
    subject: Subject,
    bench: Bench,
    variants: Sequence[Variant],
    began: float,
) -> dict[str, Any]:
    with closing(bench.player.environments):  # CPU seconds of its processes count once they have ended
        with setup():
            identity = identity_of(arguments, subject, bench.player.skills_in_rollout)
            kept = Kept(arguments.output / "parts", identity, lambda: cpu_seconds() - began)
            rows = draw_tasks(subject.tasks, arguments.tasks, arguments.seed)
        one = measured(arguments, subject, bench, variants, rows, kept)
    owner = {id(turn): played.task for played in one.played for turn in played.turns}
    everything = [turn for part in one.credited for turn in part.batch.turns]
    names = kinds([turn.action for turn in everything], [owner[id(turn)] for turn in everything])
    credit = {variant.label: one.credit(variant.label) for variant in variants}
    reference = "align_opsd" if "align_opsd" in credit else variants[0].label
    figures = agreement(one.turns, credit, reference, arguments.seed) if one.known.any() else {}
    table = by_kind(one.turns, [name for name, keep in zip(names, one.known, strict=True) if keep], credit)
    facts = {
        "command": command,
        **_facts(one),
        "cpu_seconds": kept.cpu_seconds(),
        "cpu_seconds_of_this_command": cpu_seconds() - began,
    }
    text = report.page(facts, figures, table)
    result = {
        **facts,
        "figures": figures,
        "kinds": table,
        "identity": identity,
        "encoder": arguments.encoder,
        "step": arguments.step,
        "environment": dict(subject.suite.description),
        "settings": {variant.label: _settings(variant) for variant in variants},
    }
    result = report.plain(result)
    records = report.turn_table(one.credited, one.played, one.outcome, one.found, names)
    _leave(arguments, result, records, text, figures)
    return result


def playable(played: Sequence[Trajectory], value: str) -> list[Trajectory]:
    """The episodes that can be measured.

    Raises:
        ValueError: if there are none, or their environment does not tell what is asked for.
    """
    kept = [one for one in played if not one.failed and one.turns]
    if not kept:
        why = next((one.message for one in played if one.message), "no prompt fits max_prompt_length")
        raise ValueError(f"every episode failed; the first: {why}")
    if value == "success" and any(one.won is None for one in kept):
        raise ValueError("this environment does not say who won (Step.won is None); take --value reward")
    return kept


def draw_tasks(dataset: Any, count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of a split, drawn without replacement."""
    if count > len(dataset):
        raise ValueError(f"tasks={count} is more than the {len(dataset)} tasks of the split; ask for fewer")
    order = np.random.default_rng(seed).permutation(len(dataset))[:count]
    return [dict(dataset[int(row)]) for row in order]


_PLAYED = ("num_generations", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_prompt_length")
_PLAYED += ("max_completion_length", "max_turns", "environment_time_limit", "chat_template_kwargs", "thinking_tags")
_PLAYED += ("skill_budget",)


def identity_of(arguments: argparse.Namespace, subject: Subject, skills_in_rollout: bool) -> dict[str, Any]:
    """Settings that episodes and rollouts depend on, without device and batch size, which only deal out random numbers.
    The retrieved skills, which may depend on the encoder, are compared when episodes are replayed."""
    asked = ("environment", "environment_options", "tasks", "walks", "split", "value", "everywhere", "seed", "slots")
    return {
        **{name: getattr(arguments, name) for name in (*asked, "enough", "skill_bank")},
        **{name: getattr(subject.config, name) for name in _PLAYED},
        "skills_in_rollout": skills_in_rollout,
        "weights": subject.checksum(),
        "chat_template": subject.template_checksum(),
    }


def _facts(one: Measurement) -> dict[str, Any]:
    played, turns, known = one.played, one.turns, one.known
    return {
        "rollouts": len(played),
        "failed_rollouts": len(one.everyone) - len(played),
        "first_failure": next((episode.message for episode in one.everyone if episode.failed), None),
        "tasks": len({episode.task for episode in played}),
        "success": None
        if any(episode.won is None for episode in played)
        else float(np.mean([episode.won for episode in played])),
        "reward": float(np.mean([episode.reward for episode in played])),
        "turns": len(known),
        "measured_turns": int(known.sum()),
        "measured_tasks": len(set(turns.task.tolist())),
        "states": len(one.tree.states),
        "walks": one.tree.taken,
        "walked_turns": sum(one.tree.rollout_turns),
        "median_walks": float(np.median(one.found.rollouts[known])) if known.any() else 0.0,
        "reliability": reliability(turns) if known.any() else float("nan"),
        "pivotal": float(turns.pivotal.mean()) if known.any() else float("nan"),
    }


def cpu_seconds() -> float:
    """Of this process and of those that it started and that ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def _settings(variant: Variant) -> dict[str, Any]:
    config = variant.method.config
    own = (
        "method",
        "method_options",
        "rectify",
        "alpha_max",
        "similarity_threshold",
        "allocation",
        "credit_temperature",
        "credit_spread",
    )
    return {name: getattr(config, name) for name in own}


def _leave(
    arguments: argparse.Namespace,
    result: dict[str, Any],
    records: list[dict[str, Any]],
    text: str,
    figures: dict[str, Any],
) -> None:
    folder = arguments.output
    _write(folder / "fidelity.json", json.dumps(result, indent=2, default=str).encode())
    _write(folder / "report.md", text.encode())
    write_records(folder / "turns.parquet", records)
    pictured = bool(figures) and not arguments.no_pictures
    if pictured:
        drawn = report.picture(figures, f"{arguments.model} in {arguments.environment}")
        for kind in ("png", "svg"):
            drawn.savefig(folder / f"fidelity.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    print(text)
    print(f"figures, turns{', page and picture' if pictured else ' and page'} are in {folder}")


if __name__ == "__main__":
    command()

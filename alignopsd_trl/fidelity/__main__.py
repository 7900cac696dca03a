"""Holds the turn credit of methods against Monte Carlo advantages of the same turns.

    python -m alignopsd_trl.fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd \\
        --tasks 8 --walks 12 --output outputs/fidelity

No trainer involved; the environment must be deterministic. What was played is kept in the output folder, so that a
measurement that was cut off goes on, and one with other methods or ``--vary`` plays no rollouts again.
"""

from __future__ import annotations

import argparse
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

from alignopsd_trl.chat.options import PlayOptions
from alignopsd_trl.fidelity import report
from alignopsd_trl.fidelity.arguments import read_arguments, read_set
from alignopsd_trl.fidelity.mc_rollouts import ReplayError
from alignopsd_trl.fidelity.measure import Bench, Measurement, assign_credit, columns, play_groups, take_rollouts
from alignopsd_trl.fidelity.metrics import agreement, by_kind, kinds, reliability
from alignopsd_trl.fidelity.pooling import pool
from alignopsd_trl.fidelity.setup import (
    Settings,
    Subject,
    bank_of,
    digest,
    environment_preset,
    make_bench,
)
from alignopsd_trl.fidelity.variants import Variant, make_variants, read_vary
from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.launch.machine import usable_device
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.records import write_records
from alignopsd_trl.runs.files import plain, read_json, write_bytes, write_json, write_text
from alignopsd_trl.runs.folder import differences
from alignopsd_trl.runs.sizes import choose_sizes, read_sizes
from alignopsd_trl.turns import Trajectory


class Kept:
    """What was played, in the output folder, and the CPU seconds of all commands that worked on it.

    Args:
        clock: CPU seconds of this command so far.

    Raises:
        ValueError: if the folder holds the parts of another measurement.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], clock: Callable[[], float]):
        self.folder, self._identity, self._clock = folder, plain(identity), clock
        before = read_json(folder / "identity.json") or self._identity
        if changed := differences(before, self._identity):
            told = [f"{name}={there!r}, this one has {here!r}" for name, (there, here) in changed.items()]
            raise ValueError(
                f"{folder.parent} holds a measurement with {'; '.join(told)}; choose another --output or remove the "
                "folder"
            )
        self._before = read_json(folder / "cpu_seconds.json") or 0.0

    def take(self, name: str, play: Callable[[], list[Any]]) -> list[Any]:
        """What is kept under this name, else what is played now."""
        path = self.folder / f"{name}.pkl"
        if not path.is_file():
            played = play()  # what can't be measured raises, and does not bind the folder
            write_json(self.folder / "identity.json", self._identity)
            write_bytes(path, pickle.dumps(played))
            self.cpu_seconds()
        return pickle.loads(path.read_bytes())

    def cpu_seconds(self) -> float:
        """Of all commands so far; one that was cut off counts up to what it kept last."""
        total = self._before + self._clock()
        write_json(self.folder / "cpu_seconds.json", total)
        return total


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
        named, usual = read_set(arguments.set), environment_preset(arguments.environment)
        print(choose_sizes(arguments.model, named, usual)[1], file=sys.stderr, flush=True)
    return _measure(arguments, shown, subject, bench, variants, began)


def prepare(arguments: argparse.Namespace, skilled: bool = False) -> tuple[Subject, Bench, list[Variant]]:
    """What the arguments name; those that were left open are filled in.

    Args:
        skilled: skills are retrieved even if no method asks for them.
    """
    arguments.device = usable_device(arguments.device)
    methods = [name.strip() for name in arguments.methods.split(",") if name.strip()]
    given = read_sizes(arguments.model) | read_set(arguments.set)
    settings = Settings(arguments.output, arguments.environment, given, arguments.device)
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

    everyone = kept.take("played", play)
    played = playable(everyone, arguments.value)
    choices = {name: getattr(arguments, name) for name in ("value", "everywhere", "enough", "seed")}
    try:
        tree = take_rollouts(bench, played, arguments.walks, **choices, kept=kept.take)
    except ReplayError as error:
        raise ReplayError(f"{error}; what was played is kept in {kept.folder}, remove that after a change") from error
    credited = list(assign_credit(bench, played, variants, arguments.tasks_per_batch, arguments.seed, arguments.step))
    sides = np.concatenate([outcome(one.batch, subject.config).advantage.cpu().numpy() for one in credited])
    episodes = [one for part in credited for one in part.episodes]
    return Measurement(
        everyone, played, tree, credited, sides, *columns(episodes, tree, played, sides, arguments.value)
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
    names = kinds([turn.action for _, turn in one.turns_of], [episode.task for episode, _ in one.turns_of])
    credit = {variant.label: one.credit(variant.label) for variant in variants}
    reference = "align_opsd" if "align_opsd" in credit else variants[0].label
    figures = agreement(one.turns, credit, reference, arguments.seed) if one.known.any() else {}
    table = by_kind(one.turns, [name for name, keep in zip(names, one.known, strict=True) if keep], credit)
    spent = {"cpu_seconds": kept.cpu_seconds(), "cpu_seconds_of_this_command": cpu_seconds() - began}
    facts = {"command": command, **_facts(one), **spent}
    result = plain(
        {
            **facts,
            "figures": figures,
            "kinds": table,
            "identity": identity,
            "encoder": arguments.encoder,
            "step": arguments.step,
            "environment": dict(subject.suite.description),
            "settings": {variant.label: _settings(variant) for variant in variants},
        }
    )
    write_json(arguments.output / "fidelity.json", result)
    write_records(arguments.output / "turns.parquet", report.turn_table(one, names))
    _show(arguments, report.page(facts, figures, table), figures)
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


_PLAYED = ("num_generations", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_PLAYED += ("max_completion_length", "environment_time_limit", "skill_budget", *PlayOptions.names())


def identity_of(arguments: argparse.Namespace, subject: Subject, skills_in_rollout: bool) -> dict[str, Any]:
    """Settings that episodes and rollouts depend on, without device and batch size, which only deal out random numbers.
    The retrieved skills, which may depend on the encoder, are compared when episodes are replayed."""
    asked = ("environment", "environment_options", "tasks", "walks", "split", "value", "everywhere", "seed", "slots")
    return {
        **{name: getattr(arguments, name) for name in (*asked, "enough", "skill_bank")},
        **{name: getattr(subject.config, name) for name in _PLAYED},
        "skills_in_rollout": skills_in_rollout,
        "weights": subject.checksum(),
        "chat_template": digest(subject.tokenizer.chat_template),
    }


def _facts(one: Measurement) -> dict[str, Any]:
    played, turns, known = one.played, one.turns, one.known
    won = [episode.won for episode in played if episode.won is not None]
    return {
        "rollouts": len(played),
        "failed_rollouts": len(one.everyone) - len(played),
        "first_failure": next((episode.message for episode in one.everyone if episode.failed), None),
        "tasks": len({episode.task for episode in played}),
        "success": float(np.mean(won)) if len(won) == len(played) else None,
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


_OF_CREDIT = ("rectify", "alpha_max", "similarity_threshold", "allocation", "credit_temperature", "credit_spread")


def _settings(variant: Variant) -> dict[str, Any]:
    return {name: getattr(variant.method.config, name) for name in ("method", "method_options", *_OF_CREDIT)}


def _show(arguments: argparse.Namespace, text: str, figures: dict[str, Any]) -> None:
    """Prints the page, and leaves it and its picture."""
    folder = arguments.output
    write_text(folder / "report.md", text)
    pictured = bool(figures) and not arguments.no_pictures
    if pictured:
        drawn = report.picture(figures, f"{arguments.model} in {arguments.environment}")
        for kind in ("png", "svg"):
            drawn.savefig(folder / f"fidelity.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    print(text)
    print(f"figures, turns{', page and picture' if pictured else ' and page'} are in {folder}")


if __name__ == "__main__":
    command()

"""``alignopsd fidelity``: compares the turn credit of methods with Monte Carlo advantages of the same turns.

    alignopsd fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd \\
        --tasks 8 --rollouts 12 --output outputs/fidelity

No trainer is involved; the environment must be deterministic. Episodes and rollouts stay in the output folder. An
interrupted measurement resumes from them, and one with other methods or ``--vary`` plays no rollouts again.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.measure.options import read_fidelity
from alignopsd_trl.options import path_as_given

if TYPE_CHECKING:
    from alignopsd_trl.measure.measurement import Measurement
    from alignopsd_trl.measure.setup import Subject
    from alignopsd_trl.measure.variants import Variant


def command(argv: Sequence[str]) -> None:
    """Runs `main`; an error that a user can mend ends it with a short message."""
    with reported("alignopsd fidelity", quietly=True, resumes=""):
        main(argv)


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Measures or pools, prints the page, writes the files and returns the content of the JSON file."""
    arguments = read_fidelity(argv)
    shown = "    alignopsd fidelity " + shlex.join(argv)
    from alignopsd_trl.measure.pooling import pool
    from alignopsd_trl.measure.session import Cache, cpu_seconds, draw_tasks, identity_of, measured
    from alignopsd_trl.measure.setup import environment_preset, prepare
    from alignopsd_trl.runs.sizes import choose_sizes

    began = cpu_seconds()
    with setup():
        if arguments.pool:
            return pool(arguments.pool, arguments.output)
        subject, bench, variants = prepare(arguments)
        usual = environment_preset(arguments.environment)
        print(choose_sizes(arguments.model, arguments.set, usual)[1], file=sys.stderr, flush=True)
    with closing(bench.player.environments):  # CPU seconds of its processes count once they have ended
        with setup():
            identity = identity_of(arguments, subject, bench.player.skills_in_rollout)
            cache = Cache(arguments.output / "parts", identity, lambda: cpu_seconds() - began)
            rows = draw_tasks(subject.tasks, arguments.tasks, arguments.seed)
        one = measured(arguments, subject, bench, variants, rows, cache)
    spent = {"cpu_seconds": cache.cpu_seconds(), "cpu_seconds_of_this_command": cpu_seconds() - began}
    return _leave(arguments, {"command": shown, **_facts(one), **spent}, identity, subject, variants, one)


def _leave(
    arguments: argparse.Namespace,
    facts: dict[str, Any],
    identity: dict[str, Any],
    subject: Subject,
    variants: Sequence[Variant],
    one: Measurement,
) -> dict[str, Any]:
    """Writes figures and turns, shows the page and returns the figures."""
    from alignopsd_trl.measure import report
    from alignopsd_trl.measure.metrics import agreement, by_kind, kinds
    from alignopsd_trl.records import write_records
    from alignopsd_trl.runs.files import plain, write_json

    names = kinds([turn.action for _, turn in one.turns_of], [episode.task for episode, _ in one.turns_of])
    credit = {variant.label: one.credit(variant.label) for variant in variants}
    reference = "align_opsd" if "align_opsd" in credit else variants[0].label
    figures = agreement(one.turns, credit, reference, arguments.seed) if one.known.any() else {}
    table = by_kind(one.turns, [name for name, keep in zip(names, one.known, strict=True) if keep], credit)
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


def _facts(one: Measurement) -> dict[str, Any]:
    import numpy as np

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
        **turns.quality,
    }


_OF_CREDIT = ("rectify", "alpha_max", "similarity_threshold", "allocation", "credit_temperature", "credit_spread")


def _settings(variant: Variant) -> dict[str, Any]:
    return {name: getattr(variant.method.config, name) for name in ("method", "method_options", *_OF_CREDIT)}


def _show(arguments: argparse.Namespace, text: str, figures: dict[str, Any]) -> None:
    """Prints the page and writes it with its picture."""
    from alignopsd_trl.measure.report import picture
    from alignopsd_trl.runs.files import write_text

    folder = arguments.output
    write_text(folder / "report.md", text)
    pictured = bool(figures) and not arguments.no_pictures
    if pictured:
        drawn = picture(figures, f"{arguments.model} in {arguments.environment}")
        for kind in ("png", "svg"):
            drawn.savefig(folder / f"fidelity.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    print(text)
    print(f"figures, turns{', page and picture' if pictured else ' and page'} are in {path_as_given(folder)}")

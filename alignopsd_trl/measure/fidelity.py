"""``alignopsd measure``: compares the turn credit of methods with Monte Carlo advantages of the same turns.

    alignopsd measure --model tiny --environment webshop_tiny --methods grpo,align_opsd \\
        --tasks 8 --rollouts 12 --output outputs/fidelity

No trainer is involved; the environment must be deterministic. Episodes and rollouts stay in the output folder. An
interrupted measurement resumes from them, and one with other methods or ``--vary`` plays no rollouts again.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.common.files import plain, write_json, write_text
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.measure.measurement import Cache, Measurement, cpu_seconds, measured
from alignopsd_trl.measure.metrics import agreement
from alignopsd_trl.measure.report import page
from alignopsd_trl.measure.setup import environment_preset, prepare
from alignopsd_trl.measure.table import credit_of, measured_rows, turns_of
from alignopsd_trl.methods import Method
from alignopsd_trl.records import write_records
from alignopsd_trl.runs.sizes import choose_sizes


def measure(arguments: argparse.Namespace, shown: str) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file.

    Args:
        arguments: of `commands.read_measure`.
        shown: the command line.
    """
    began = cpu_seconds()
    with setup():
        session = prepare(arguments)
        usual = environment_preset(arguments.environment)
        print(choose_sizes(arguments.model, arguments.set, usual)[1], file=sys.stderr, flush=True)
    with closing(session.player.environments):  # CPU seconds of its processes count once they have ended
        with setup():
            identity = session.identity()
            cache = Cache(arguments.output / "parts", identity)
            rows = session.draw_tasks(arguments.tasks)
        one = measured(session, rows, cache)
    known = measured_rows([one.table])
    turns, credit = turns_of(known), credit_of(known)
    facts = {"command": shown, **_facts(one, known), **turns.quality, "cpu_seconds": cpu_seconds() - began}
    reference = "align_opsd" if "align_opsd" in credit else next(iter(credit))
    figures = agreement(turns, credit, reference, arguments.seed) if len(known) else {}
    result = plain(
        facts
        | {"figures": figures, "identity": identity}
        | {"encoder": arguments.encoder, "step": arguments.step, "environment": dict(session.suite.description)}
        | {"settings": {label: _settings(method) for label, method in session.variants.items()}}
    )
    folder, text = arguments.output, page(facts, figures)
    write_json(folder / "fidelity.json", result)
    write_records(folder / "turns.parquet", one.table.to_dict("records"))
    write_text(folder / "report.md", text)
    print(text)
    print(f"figures, turns and page are in {path_as_given(folder)}")
    return result


def _facts(one: Measurement, known: pd.DataFrame) -> dict[str, Any]:
    played = one.played
    won = [episode.won for episode in played if episode.won is not None]
    return {
        "rollouts": len(played),
        "failed_rollouts": len(one.everyone) - len(played),
        "first_failure": next((episode.message for episode in one.everyone if episode.failed), None),
        "tasks": len({episode.task for episode in played}),
        "success": float(np.mean(won)) if len(won) == len(played) else None,
        "reward": float(np.mean([episode.reward for episode in played])),
        "turns": len(one.table),
        "measured_turns": len(known),
        "measured_tasks": known.task.nunique(),
        "states": len(one.tree.states),
        "walks": one.tree.taken,
        "walked_turns": sum(one.tree.rollout_turns),
        "median_walks": float(known.walks.median()) if len(known) else 0.0,
    }


_OF_CREDIT = ("rectify", "alpha_max", "similarity_threshold", "allocation", "credit_temperature", "credit_spread")


def _settings(method: Method) -> dict[str, Any]:
    return {name: getattr(method.config, name) for name in ("method", "method_options", *_OF_CREDIT)}

"""The command line of ``alignopsd tune``, read before anything heavy is imported."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence

from alignopsd_trl.checks.model_files import check_model_name
from alignopsd_trl.environments.loading import importable
from alignopsd_trl.fidelity.arguments import DTYPES, VALUES, read_arguments, read_set
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.launch.values import environment_options
from alignopsd_trl.runs.command import CommandParser, place
from alignopsd_trl.runs.files import check_folder

UNSKILLED = ("grpo", "gigpo", "hgpo", "graphgpo", "gagpo")
SKILLED = ("align_opsd", "rlsd")
VARIED = ("rectify=false", "credit_spread=0.4", "rectify=false+credit_spread=0.4")
"""Methods that ask no teacher, methods that do, and settings of AlignOPSD: what is ranked unless told otherwise."""

BATCH = 8
"""Tasks that are measured together; another batch begins while there is time."""


def read_command(argv: Sequence[str] | None) -> argparse.Namespace:
    """Reads the arguments and the recipe's settings, which become ``given.settings``."""
    about = "Measures on training tasks what to train with, ranks it and writes a YAML file for train --config."
    parser = CommandParser(prog="alignopsd tune", description=about)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="as for train: a shipped recipe, or a task or recipe of your own")
    add("--model", help="a folder, a hub id or a shipped policy, in place of the recipe's")
    add("--methods", help=f"by default {','.join(UNSKILLED + SKILLED)}; grpo is always measured")
    add(
        "--vary",
        action="append",
        metavar="NAME=A,B",
        help="settings of AlignOPSD or METHOD.OPTION=VALUE, as in fidelity",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of AlignOPSDConfig for everything")
    add("--environment_options", help="JSON, handed to the environment's suite()")
    add("--skill_bank", help="by default the recipe's, else the environment's own")
    add("--encoder", help="'lexical', an id or a path; the recipe's by default")
    add("--value", choices=VALUES, default="success", help="what is measured; reward where nobody knows who won")
    add("--tasks", type=int, default=32, help=f"training tasks at most, measured {BATCH} at a time")
    add("--rollouts", type=int, default=6, help="Monte Carlo rollouts a state on average, at most")
    add("--minutes", type=float, help="begin no further batch of tasks that would take longer than this in all")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--batch_size", type=int, default=256, help="responses generated side by side")
    add("--dtype", choices=DTYPES, default="auto", help="of the weights")
    add("--device", help="by default the GPU, or the CPU where there is none")
    add("--quiet", action="store_true", help="no progress")
    add("--output", type=place, help="folder of all files; outputs/tune_RECIPE by default")
    given = parser.parse_args(argv)
    parser.at_least(given, {"tasks": 2, "rollouts": 1, "batch_size": 1, "seed": 0})
    if given.minutes is not None and not given.minutes > 0:
        parser.error(f"--minutes {given.minutes:g} must be more than 0")
    with setup():
        given.settings = preset(given.recipe)
        given.output = given.output or place(f"outputs/tune_{importable(given.recipe).rpartition('.')[2]}")
        given.own = read_set(given.set)
        given.model = given.model or given.settings["model_name_or_path"]
        for name in ("skill_bank", "encoder", "environment_options"):
            setattr(given, name, getattr(given, name) or given.settings.get(name))
        given.environment_options = environment_options(given.environment_options)
        check_model_name(given.model, "model")
        check_folder(str(given.output), "output")
    return given


def as_fidelity(given: argparse.Namespace, skilled: bool, known: Collection[str]) -> argparse.Namespace:
    """The same wishes as arguments of ``alignopsd fidelity``.

    Args:
        skilled: whether there are skills for a teacher.
        known: fields of `AlignOPSDConfig`; what else a preset sets is the recipe's.
    """
    settings = given.settings
    chosen = given.methods.split(",") if given.methods else [*UNSKILLED, *(SKILLED if skilled else ())]
    methods = list(dict.fromkeys(["grpo", *(name.strip() for name in chosen if name.strip())]))
    vary = given.vary if given.vary is not None else VARIED if "align_opsd" in methods else ()
    fields = {name: value for name, value in settings.items() if name in known and name != "method_options"}
    flags = {
        "model": given.model,
        "environment": settings["environment"],
        "environment_options": json.dumps(given.environment_options),
        "split": settings.get("train_split"),
        "skill_bank": given.skill_bank,
        "encoder": given.encoder,
        "tasks": BATCH,
        "tasks_per_batch": BATCH,
        "walks": given.rollouts,
        "methods": ",".join(methods),
        **{name: getattr(given, name) for name in ("value", "seed", "batch_size", "dtype", "device", "output")},
    }
    argv = [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]
    argv += [word for one in vary for word in ("--vary", one)]
    argv += [word for name, value in fields.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    argv += [word for one in given.set for word in ("--set", one)]
    return read_arguments([*argv, *(["--quiet"] if given.quiet else [])])

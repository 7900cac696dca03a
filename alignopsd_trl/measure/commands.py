"""``alignopsd fidelity`` and ``alignopsd tune``: reads and checks their arguments before heavy imports."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignopsd_trl.checks.model_files import check_model_name
from alignopsd_trl.environments.loading import importable
from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.launch.presets import preset
from alignopsd_trl.launch.values import environment_options, read_value
from alignopsd_trl.models import SHIPPED_MODELS
from alignopsd_trl.runs.command import CommandParser, place
from alignopsd_trl.runs.files import check_folder

BATCH = 8
"""Number of tasks in a batch of `tune`; another batch begins while there is time."""

LEAST = {"tasks": 1, "rollouts": 1, "seed": 0, "batch_size": 1}
"""Smallest values of arguments that both commands share."""


def fidelity(argv: Sequence[str]) -> None:
    """Runs `run_fidelity`; an error that a user can mend ends it with a short message."""
    with reported("alignopsd fidelity", quietly=True, resumes=""):
        run_fidelity(argv)


def tune(argv: Sequence[str]) -> None:
    """Runs `run_tune`; an error that a user can mend ends it with a short message."""
    with reported("alignopsd tune", quietly=True, resumes=""):
        run_tune(argv)


def run_fidelity(argv: Sequence[str]) -> dict[str, Any]:
    """Measures or pools, prints the page, writes the files and returns the content of the JSON file."""
    given = read_fidelity(argv)
    if given.pool:
        from alignopsd_trl.measure.report import pool

        with setup():
            return pool(given.pool, given.output)
    from alignopsd_trl.measure.fidelity import measure

    return measure(given, "    alignopsd fidelity " + shlex.join(argv))


def run_tune(argv: Sequence[str]) -> dict[str, Any]:
    """Measures, prints the page, writes the files and returns the content of the JSON file."""
    given = read_tune(argv)
    from alignopsd_trl.measure.tune import tune

    return tune(given, "alignopsd tune " + shlex.join(argv))


def read_fidelity(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments of ``alignopsd fidelity``."""
    parser = _parser("fidelity", "Turn credit of methods against Monte Carlo advantages of the same turns.")
    add = parser.add_argument
    add("--environment", help="webshop_tiny, alfworld_tiny, ... or a module with suite()")
    add("--enough", type=float, help="reliability of A_MC that ends rollouts; by default by the states; 1: never")
    add("--split", default="train", help="whose tasks are drawn")
    add("--tasks_per_batch", type=int, help="groups that get credit together; as many as a training round has")
    add("--everywhere", action="store_true", help="measure also groups whose siblings were all rewarded alike")
    add("--step", type=int, default=0, help="training round for which methods with a schedule give credit")
    add("--slots", type=int, default=256, help="episodes side by side")
    add("--pool", nargs="+", type=Path, metavar="FOLDER", help="take earlier measurements together; plays nothing")
    parser.set_defaults(methods=["grpo", "align_opsd"], vary=[], tasks=8, rollouts=12)
    given = parser.parse_args(argv)
    parser.at_least(given, LEAST | {"step": 0, "tasks_per_batch": 1, "slots": 1})
    if given.pool:
        return given
    if given.enough is not None and not 0 < given.enough <= 1:
        parser.error(f"--enough {given.enough:g} must lie above 0 and be 1 at most")
    if missing := [f"--{name}" for name in ("model", "environment", "output") if not getattr(given, name)]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    with setup():
        _check(given)
    return given


def read_tune(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments of ``alignopsd tune`` and the recipe's settings, which become ``given.settings``."""
    about = "Measures on training tasks what to train with, ranks it and writes a YAML file for train --config."
    parser = _parser("tune", about)
    parser.add_argument("recipe", metavar="RECIPE", help="as for train: a shipped recipe, or a task or recipe of yours")
    parser.add_argument("--minutes", type=float, help="begin no further batch of tasks that would end later than this")
    parser.set_defaults(tasks=32, rollouts=6, tasks_per_batch=BATCH, slots=256, enough=None, everywhere=False, step=0)
    given = parser.parse_args(argv)
    parser.at_least(given, LEAST | {"tasks": 2})
    if given.minutes is not None and not given.minutes > 0:
        parser.error(f"--minutes {given.minutes:g} must be more than 0")
    with setup():
        given.settings = preset(given.recipe)
        given.output = given.output or place(f"outputs/tune_{importable(given.recipe).rpartition('.')[2]}")
        given.model = given.model or given.settings["model_name_or_path"]
        given.environment, given.split = given.settings["environment"], given.settings.get("train_split", "train")
        for name in ("skill_bank", "encoder", "environment_options"):
            setattr(given, name, getattr(given, name) or given.settings.get(name))
        _check(given)
    return given


def _parser(command: str, about: str) -> CommandParser:
    """Makes a parser of the arguments that both commands share."""
    parser = CommandParser(prog=f"alignopsd {command}", description=about)
    add = parser.add_argument
    add("--model", help=f"hub id or path; shipped are {', '.join(SHIPPED_MODELS)}; tune: the recipe's by default")
    add("--environment_options", help="JSON, the keyword arguments of the environment's suite()")
    add("--methods", type=_names, help="names, separated by commas; tune always measures grpo")
    add("--vary", action="append", metavar="NAME=A,B", help="further variants; A=1+B=2 sets two together")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of AlignOPSDConfig, or METHOD.OPTION")
    add("--tasks", type=int, help=f"sibling groups; tune measures {BATCH} at a time")
    add("--rollouts", type=int, help="Monte Carlo rollouts a state on average, at most")
    add("--value", choices=("reward", "success"), default="success", help="what a state's value is the mean of")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--skill_bank", help="shipped name, path, column of the rows or module:function; by default the environment's")
    add("--privileged", nargs="+", default=[], metavar="NAME", help="texts per turn to compare, bank among them")
    add("--encoder", help="'lexical', an id or a path; the preset's by default")
    add("--batch_size", type=int, default=256, help="responses generated side by side")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    add("--dtype", choices=dtypes, default="auto", help="of the weights; auto: as they were saved")
    add("--device", help="by default the GPU, or the CPU where there is none")
    add("--quiet", action="store_true", help="no progress bars")
    add("--output", type=place, help="folder of all files; tune: outputs/tune_RECIPE by default")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _check(given: argparse.Namespace) -> None:
    """Checks the values of arguments that both commands share, and reads JSON and YAML values."""
    given.set = dict(map(_setting, given.set))
    given.environment_options = environment_options(given.environment_options)
    check_model_name(given.model)
    check_folder(str(given.output), "output")


def _setting(one: str) -> tuple[str, Any]:
    """Reads a setting such as ``max_turns=8``, with its value in YAML."""
    name, equals, value = one.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"--set {one} is not NAME=VALUE")
    return name.strip(), read_value(value, f"--set {one}")

"""The command line of a measurement, read before anything heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignopsd_trl.checks.model_files import check_model_name
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.values import environment_options, read_value
from alignopsd_trl.models import SHIPPED_MODELS
from alignopsd_trl.runs.command import CommandParser, place
from alignopsd_trl.runs.files import check_folder

VALUES = ("reward", "success")
COUNTS = ("tasks", "walks", "tasks_per_batch", "slots", "batch_size")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def read_set(given: Sequence[str]) -> dict[str, Any]:
    """``max_turns=8`` as a setting, its value as YAML reads it.

    Raises:
        ValueError: for what is no such text.
    """
    chosen = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"--set {one} is not NAME=VALUE")
        chosen[name.strip()] = read_value(value, f"--set {one}")
    return chosen


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = "Turn credit of methods against Monte Carlo advantages of the same turns."
    parser = CommandParser(prog="alignopsd fidelity", description=about)
    add = parser.add_argument
    add("--model", help=f"hub id or path; shipped are {', '.join(SHIPPED_MODELS)}")
    add("--environment", help="webshop_tiny, alfworld_tiny, ... or a module with suite()")
    add("--environment_options", help="JSON, handed to its suite()")
    add("--methods", default="grpo,align_opsd", help="names, separated by commas")
    add("--vary", action="append", default=[], metavar="NAME=A,B", help="further variants; A=1+B=2 sets two together")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of AlignOPSDConfig, or METHOD.OPTION")
    add("--tasks", type=int, default=8, help="sibling groups")
    add("--walks", type=int, default=12, help="Monte Carlo rollouts a state on average, at most")
    add("--enough", type=float, help="reliability of A_MC that ends rollouts; by default by the states; 1: never")
    add("--split", default="train", help="whose tasks are drawn")
    add("--tasks_per_batch", type=int, help="groups that get credit together; as many as a training round has")
    add("--value", choices=VALUES, default="success", help="what a state's value is the mean of")
    add("--everywhere", action="store_true", help="measure also groups whose siblings were all rewarded alike")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--step", type=int, default=0, help="training round at which schedules of methods are asked")
    add("--skill_bank", help="shipped name, path, column of the rows or module:function; by default the environment's")
    add("--encoder", help="'lexical', an id or a path; the preset's by default")
    add("--slots", type=int, default=256, help="episodes side by side")
    add("--batch_size", type=int, default=256, help="responses generated side by side")
    add("--dtype", choices=DTYPES, default="auto", help="of the weights; auto: as they were saved")
    add("--device", help="by default the GPU, or the CPU where there is none")
    add("--no_pictures", action="store_true", help="leave out PNG and SVG (which need matplotlib)")
    add("--quiet", action="store_true", help="no progress bars")
    add("--output", type=place, help="folder of all files; needed but with --pool")
    add("--pool", nargs="+", type=Path, metavar="FOLDER", help="take earlier measurements together; plays nothing")
    given = parser.parse_args(argv)
    if given.pool:
        return given
    parser.at_least(given, {"seed": 0, "step": 0, **dict.fromkeys(COUNTS, 1)})
    if given.enough is not None and not 0 < given.enough <= 1:
        parser.error(f"--enough {given.enough:g} must lie above 0 and be 1 at most")
    if missing := [f"--{name}" for name in ("model", "environment", "output") if not getattr(given, name)]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    with setup():
        given.environment_options = environment_options(given.environment_options)
        check_model_name(given.model, "model")
        check_folder(str(given.output), "output")
    return given

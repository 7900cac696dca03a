"""``alignopsd skills check``: reads and checks its arguments before heavy imports."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from alignopsd_trl.checks.model_files import check_model_name
from alignopsd_trl.common.command import CommandParser, place
from alignopsd_trl.common.files import check_folder
from alignopsd_trl.common.models import SHIPPED_MODELS
from alignopsd_trl.launch.errors import reported, setup
from alignopsd_trl.launch.values import environment_options

LEAST = {"tasks": 3, "episodes": 1, "seed": 0, "slots": 8}


def skills(argv: Sequence[str]) -> None:
    """Checks a bank; an error that a user can mend ends it with a short message."""
    with reported("alignopsd skills", quietly=True, resumes=None):
        given, shown = read(argv), "alignopsd skills " + shlex.join(argv)
        from alignopsd_trl.measure.skills import check

        check(given, shown)


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments."""
    parser = CommandParser(prog="alignopsd skills", description="What each skill of a bank is worth.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="check")
    check = actions.add_parser("check", help="success with each skill minus success without, on training tasks")
    check.add_argument("bank", metavar="BANK", help="a shipped bank's name or the path of a JSON file")
    check.add_argument("--output", type=place, default=place("outputs/skills"), help="folder of skills.json and .csv")
    _add_measurement(check)
    given = parser.parse_args(argv)
    parser.at_least(given, LEAST)
    with setup():
        given.environment_options = environment_options(given.environment_options)
        check_model_name(given.model)
        check_folder(str(given.output), "output")
    return given


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help=f"hub id or path; shipped are {', '.join(SHIPPED_MODELS)}")
    add("--environment", required=True, help="webshop_trips, alfworld_tiny, ... or a module with suite()")
    add("--environment_options", help="JSON, the keyword arguments of the environment's suite()")
    add("--split", default="train", help="whose tasks are drawn")
    add("--tasks", type=int, default=256, help="tasks to draw, at most; all are played without a skill")
    add("--episodes", type=int, default=1000, help="with a skill, shared by the skills; more decide more")
    add("--value", choices=("reward", "success"), default="success", help="what a skill should raise")
    add("--encoder", help="retrieves skills: 'lexical', an id or a path; the preset's by default")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--slots", type=int, default=256, help="episodes side by side")
    add("--device", help="by default the GPU, or the CPU where there is none")

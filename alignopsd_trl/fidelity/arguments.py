"""The command line of a measurement, read before anything heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignopsd_trl.launch.checks import environment_options
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.policy.shipped import SHIPPED_MODELS

VALUES = ("reward", "success")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


_count.__name__ = "whole number"  # what argparse calls it in a message


def read_set(given: Sequence[str]) -> dict[str, Any]:
    """``max_turns=8`` as a setting, its value as YAML reads it.

    Raises:
        ValueError: for what is no such text.
    """
    import yaml

    chosen = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ValueError(f"--set {one} is not NAME=VALUE")
        chosen[name.strip()] = yaml.safe_load(value)
    return chosen


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    about = "Turn credit of methods against Monte Carlo advantages of the same turns."
    parser = argparse.ArgumentParser(prog="python -m alignopsd_trl.fidelity", description=about)
    add = parser.add_argument
    add("--model", required=True, help=f"hub id or path; shipped are {', '.join(SHIPPED_MODELS)}")
    add("--environment", required=True, help="webshop_tiny, alfworld_tiny, ... or a module with suite()")
    add("--environment_options", help="JSON, handed to its suite()")
    add("--methods", default="grpo,align_opsd", help="names, separated by commas")
    add("--vary", action="append", default=[], metavar="NAME=A,B", help="further variants; A=1+B=2 sets two together")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of AlignOPSDConfig, or METHOD.OPTION")
    add("--tasks", type=_count, default=8, help="sibling groups")
    add("--walks", type=_count, default=12, help="walks a state on average, at most")
    add("--enough", type=float, help="reliability of A_MC at which walking ends, by default by the states; 1: never")
    add("--split", default="train", help="whose tasks are drawn")
    add("--tasks_per_batch", type=_count, help="groups that get credit together; as many as a training round has")
    add("--value", choices=VALUES, default="success", help="what a state's value is the mean of")
    add("--everywhere", action="store_true", help="walk also where all siblings were rewarded alike")
    add("--gradients", action="store_true", help="compare parameter gradients too")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--skill_bank", help="shipped name or path; the environment's own by default")
    add("--encoder", help="'lexical', an id or a path; the preset's by default")
    add("--slots", type=_count, default=256, help="episodes side by side")
    add("--batch_size", type=_count, default=256, help="responses generated side by side")
    add("--dtype", default="auto", help="auto, float32, bfloat16")
    add("--device", help="by default the GPU, or the CPU where there is none")
    add("--no_pictures", action="store_true", help="leave out PNG and SVG (which need matplotlib)")
    add("--quiet", action="store_true", help="no progress bars")
    add("--output", type=Path, required=True)
    given = parser.parse_args(argv)
    with setup():
        given.environment_options = environment_options(given.environment_options)
    return given

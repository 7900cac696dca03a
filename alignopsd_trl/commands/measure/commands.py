"""``alignopsd measure``: reads and checks its arguments before heavy imports."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignopsd_trl.commands.launch.presets import preset
from alignopsd_trl.commands.launch.values import environment_options, read_value
from alignopsd_trl.common.command import CommandParser, place
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import check_folder
from alignopsd_trl.common.models import SHIPPED_MODELS, check_model_name
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.environments.loading import importable
from alignopsd_trl.runs.owned import owned

FILES = ("fidelity.json", "turns.parquet", "tune.json", "tuned.yaml", "report.md", "pooled.json")
FILES += ("skills.json", "skills_worth.csv")
"""Files that the command writes into its output, beside the parts."""

LEAST = {"seed": 0, "step": 0}
LEAST |= dict.fromkeys(("tasks", "rollouts", "batch_size", "tasks_per_batch", "slots", "episodes"), 1)

OF_CREDIT: dict[str, Any] = {"methods": ["grpo", "align_opsd"], "vary": [], "rollouts": 12}
"""Values of omitted arguments of a measurement of credit; without credit there is only what plays."""
PLAYS: dict[str, Any] = {"methods": ["grpo"], "vary": [], "rollouts": 1}
CREDIT_ONLY = ("methods", "vary", "rollouts", "enough", "everywhere", "step", "tasks_per_batch")


def measure(argv: Sequence[str]) -> None:
    """Calls `run_measure`; an error that the user can fix ends it with a few lines."""
    with reported("alignopsd measure", resumes=None if "--each_skill" in argv else ""):
        run_measure(argv)


def run_measure(argv: Sequence[str]) -> dict[str, Any]:
    """Measures or pools, prints the page, writes the files and returns the content of the JSON file."""
    given, shown = read_measure(argv), "alignopsd measure " + shlex.join(argv)
    with owned("measure", *(given.output / name for name in FILES if given.output)):
        if given.pool:
            from alignopsd_trl.commands.measure.measurement import pool

            with setup():
                return pool(given.pool, given.output)
        if given.each_skill:
            from alignopsd_trl.commands.measure.skill_worth import check

            return check(given, shown)
        if given.recipe:
            from alignopsd_trl.commands.measure.tune import tune

            return tune(given, shown)
        from alignopsd_trl.commands.measure.measurement import measure

        return measure(given, f"    {shown}")


def read_measure(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments; a recipe's settings become ``given.settings``."""
    parser = _parser()
    given = parser.parse_args(argv)
    parser.read_with(given, "each_skill", "episodes")
    plays = given.recipe or given.each_skill
    parser.at_least(given, LEAST | ({"tasks": 3, "slots": 8} if given.each_skill else {"tasks": 2} if plays else {}))
    if given.enough is not None and not 0 < given.enough <= 1:
        parser.error(f"--enough {given.enough:g} must lie above 0 and be 1 at most")
    if given.pool:
        return given
    if given.recipe and (given.environment or given.split):
        parser.error("RECIPE names its environment and its split; leave --environment and --split out")
    if not given.recipe and not (given.model and given.environment and (given.output or given.each_skill)):
        parser.error("the following arguments are required: RECIPE, or --model, --environment and --output")
    if plays and (alien := next((name for name in CREDIT_ONLY if getattr(given, name)), None)):
        parser.error(f"--{alien} is about credit, which --model, --environment and --output measure; leave it out")
    with setup():
        if given.recipe:
            _take_recipe(given)
        tasks = 256 if given.each_skill else 32 if plays else 8
        usual = {"tasks": tasks, "split": "train", "settings": {}, "output": place("outputs/skills")}
        _complete(given, usual | (PLAYS if plays else OF_CREDIT))
        given.set = _settings(given.set, given.methods)
        given.environment_options = environment_options(given.environment_options)
        check_model_name(given.model)
        check_folder(str(given.output), "output")
    return given


def _take_recipe(given: argparse.Namespace) -> None:
    """Fills in omitted arguments from the recipe's settings."""
    given.settings = preset(given.recipe)
    name = importable(given.recipe).rpartition(".")[2]
    folder = f"outputs/skills_{name}" if given.each_skill else f"outputs/measure_{name}"
    usual = {"output": place(folder), "model": given.settings["model_name_or_path"]}
    usual |= {"split": given.settings.get("train_split", "train")}
    taken = ("environment", "skill_bank", "encoder", "environment_options")
    _complete(given, usual | {name: given.settings.get(name) for name in taken})


def _complete(given: argparse.Namespace, usual: dict[str, Any]) -> None:
    for name, value in usual.items():
        setattr(given, name, value if getattr(given, name, None) is None else getattr(given, name))


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="alignopsd measure",
        description="With RECIPE: whether the skills lift its policy, and a YAML file for train --config. With "
        "--model, --environment and --output: the turn credit of methods against Monte Carlo advantages of the same "
        "turns. With --each_skill and either: what each skill of the bank is worth.",
    )
    add = parser.add_argument
    about = "as for train: a shipped recipe, or a task or recipe of yours; else --model, --environment and --output"
    add("recipe", metavar="RECIPE", nargs="?", help=about)
    add("--each_skill", action="store_true", help="success with each skill minus success without, on training tasks")
    add("--model", help=f"hub id or path; shipped are {', '.join(SHIPPED_MODELS)}; the recipe's by default")
    add("--environment", help="webshop_tiny, alfworld_tiny, ... or a module with suite()")
    add("--environment_options", help="JSON, the keyword arguments of the environment's suite()")
    add("--split", help="whose tasks are drawn; train by default")
    add("--methods", type=_names, help="names, separated by commas; grpo,align_opsd by default")
    add("--vary", action="append", metavar="NAME=A,B", help="further variants; A=1+B=2 sets two together")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of AlignOPSDConfig, or METHOD.OPTION")
    add("--tasks", type=int, help="at most; 8 by default, of a recipe 32, for --each_skill 256")
    add("--episodes", type=int, default=1000, help="of --each_skill, shared by the skills; more decide more")
    add("--rollouts", type=int, help="Monte Carlo rollouts a state on average, at most; 12 by default")
    add("--value", choices=("reward", "success"), default="success", help="what counts of an episode")
    add("--enough", type=float, help="reliability of A_MC that ends rollouts; by default by the states; 1: never")
    add("--everywhere", action="store_true", help="measure also groups whose siblings were all rewarded alike")
    add("--step", type=int, default=0, help="training round for which methods with a schedule give credit")
    add("--tasks_per_batch", type=int, help="groups that get credit together; as many as a training round has")
    add("--slots", type=int, default=256, help="episodes side by side")
    add("--seed", type=int, default=0, help="of the tasks that are drawn and of all sampling")
    add("--skill_bank", help="shipped name, path, column of the rows or module:function; by default the environment's")
    add("--encoder", help="'lexical', an id or a path; the preset's by default")
    add("--batch_size", type=int, default=256, help="responses generated side by side")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    add("--dtype", choices=dtypes, default="auto", help="of the weights; auto: as they were saved")
    add("--device", help="by default the GPU, or the CPU where there is none")
    add("--quiet", action="store_true", help="no progress bars")
    add("--output", type=place, help="folder of all files; outputs/measure_RECIPE or outputs/skills by default")
    add("--pool", nargs="+", type=Path, metavar="FOLDER", help="take earlier measurements together; plays nothing")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


SAID_BY = {"method": "methods", "output_dir": "output", "use_cpu": "device"}
"""Fields that follow from arguments of the command."""


def _settings(words: Sequence[str], methods: Sequence[str]) -> dict[str, Any]:
    """Reads settings such as ``max_turns=8``, with their values in YAML."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if not name or not value:
            raise ValueError(f"--set {word} is not NAME=VALUE")
        if name in found:
            raise ValueError(f"--set {' --set '.join(words)} sets a field twice; leave one out")
        owner, option, _ = name.partition(".")
        if option and owner not in methods:
            raise ValueError(
                f"--set {name}: {owner!r} is not among the methods {', '.join(methods)}; add it, or leave it out"
            )
        if name in SAID_BY:
            raise ValueError(f"--set {name} is not read; use --{SAID_BY[name]}")
        found[name] = read_value(value, f"--set {word}")
    return found

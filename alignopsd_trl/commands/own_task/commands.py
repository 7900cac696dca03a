"""The commands ``alignopsd new``, ``check``, ``demonstrate`` and ``warm_start``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignopsd_trl.commands.launch.values import environment_options
from alignopsd_trl.commands.own_task.options import ASKED, LIST, PROGRAMS, SCRIPTED, SKILLED_SHARE, TIME_LIMIT
from alignopsd_trl.common.command import CommandParser, number, place
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import check_folder
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.environments.shipped import BENCHMARKS
from alignopsd_trl.runs.owned import refuse

if TYPE_CHECKING:
    from alignopsd_trl.commands.own_task.task import Task

TASK = "a module with suite(), its file or folder, MODULE:CLASS of a TRL class, or the address of an OpenEnv server"
SKILLED = f"share of episodes played under the skill; {SKILLED_SHARE:g}, at which the policy follows it in a prompt, "
SKILLED += "and 1 with --policy"
LEAST = {"episodes": 1, "max_prompt_length": 1, "max_completion_length": 1, "time_limit": 1e-3}
LEAST |= {"seed": 0, "skilled_share": 0, "temperature": 0}
FOLDER, FILE = "policy", "demonstrations.jsonl"
"""Default outputs: the policy's folder (`warm_start`) and the file of demonstrations (`demonstrate`)."""


def new(argv: Sequence[str]) -> None:
    """Writes a new task that runs as it stands."""
    parser = CommandParser(prog="alignopsd new", description="Writes a task that runs into a new folder.")
    parser.add_argument("folder", nargs="?", help="its name is the task's: letters, digits and underscores")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tools", action="store_const", const="", help="a class of TRL's convention: tools as methods")
    kind.add_argument("--agent", action="store_const", const="", help="a program that asks for chat completions")
    kind.add_argument("--openenv", metavar="URL", help="a client of the OpenEnv server at this address")
    kind.add_argument(
        "--textarena", metavar="ID", help=f"a game of TextArena; {LIST!r} prints what this and the next four take here"
    )
    kind.add_argument(
        "--textworld", metavar="GAME", nargs="?", const="", help="houses of TextWorld; FILE.z8, or options"
    )
    kind.add_argument("--scienceworld", metavar="TASK", help="a task of ScienceWorld")
    kind.add_argument("--gymnasium", metavar="ID", help="an environment of Gymnasium that shows text or numbers")
    kind.add_argument("--reasoning_gym", metavar="DATASET", help="questions of reasoning-gym")
    about = "mends small repositories: a coding agent as its makers ship it; or 'small', an agent of 40 lines"
    kind.add_argument("--program", choices=PROGRAMS, help=about)
    about = "a taskset of verifiers 0.4 by its id, whose Python is in VERIFIERS_PYTHON; settings and harness=ID follow"
    kind.add_argument("--verifiers", metavar="ID[,NAME=VALUE,...]", help=about)
    about = (
        "questions with answers: a file (jsonl, json, csv, parquet), a folder, or an id of the Hub, ID:CONFIGURATION"
    )
    kind.add_argument("--dataset", metavar="PATH|ID", help=about)
    parser.add_argument("--seen", metavar="MODULE:FUNCTION", help="makes a text of what --gymnasium shows; or 'drawn'")
    parser.add_argument("--played", metavar="MODULE:FUNCTION", help="makes an action for --gymnasium of a text")
    about = (
        "the first policy: smollm2 (where the extra offline is installed) or tiny, which learn the task from a player "
    )
    about += "first; or a folder or an id of the Hub, trained as it comes"
    parser.add_argument("--model", metavar="NAME", help=about)
    parser.add_argument(
        "--gpu_gib", type=number, help="GiB of the GPU that the model is trained on; by default this one's"
    )
    given = parser.parse_args(argv)
    parser.read_with(given, "gymnasium", "seen", "played")
    parser.at_least(given, LEAST | {"gpu_gib": 1})
    from alignopsd_trl.commands.own_task.scaffold import WORLDS, write_task
    from alignopsd_trl.commands.own_task.worlds import listed

    with reported("alignopsd new", resumes=None), setup():
        if world := next((name for name in WORLDS if getattr(given, name) == LIST), None):
            for line in listed(world):
                print(line, flush=True)
            return
        if given.folder is None:
            raise ValueError("name a folder for the task: alignopsd new NAME")
        others = ("tools", "agent", "openenv", "program", "verifiers", "dataset")
        kinds = {name: getattr(given, name) for name in (*others, *WORLDS)}
        kind, asked = next(((name, one) for name, one in kinds.items() if one is not None), ("environment", ""))
        functions = {name: getattr(given, name) for name in ("seen", "played") if getattr(given, name)}
        print(write_task(given.folder, kind, asked, given.model, functions, given.gpu_gib))


def check(argv: Sequence[str]) -> int:
    """Prints the findings about a task; returns 1 if one would ruin a run, else 0."""
    parser = _parser("check", "Finds without a policy what would ruin a run on a task.")
    parser.add_argument("--player", metavar="MODULE:FUNCTION", help="plays too; TASK_player:play if it exists")
    parser.add_argument("--episodes", type=int, help="of each kind of play, however long; by default 16 if time allows")
    parser.add_argument("--model", help="whose tokenizer counts; that of train.py's START by default")
    parser.add_argument("--max_prompt_length", type=int, help="of the policy; the recipe's by default")
    parser.add_argument("--max_completion_length", type=int, help="likewise")
    parser.add_argument("--time_limit", type=number, default=TIME_LIMIT, help="seconds of one call of the environment")
    games = ", ".join(BENCHMARKS)
    parser.add_argument("--play", action="store_true", help=f"play {games} by hand instead; --play --help says how")
    given = parser.parse_args(argv)
    parser.at_least(given, LEAST)
    with reported("alignopsd check", resumes=None), setup():
        from alignopsd_trl.commands.own_task.check.task_check import check_task

        here = ("task", "environment_options", "rows", "play", "model")
        options = {name: value for name, value in vars(given).items() if name not in here}
        task = _task(given)
        report = check_task(
            task,
            tokenizer=_tokenizer(given.model, task),
            stage=lambda stage: print(f"alignopsd check: {stage}", file=sys.stderr, flush=True),
            **options,
        )
        print(report.told())
    return int(report.ruined)


def demonstrate(argv: Sequence[str]) -> None:
    """Lets a player play, and writes its turns as demonstrations."""
    parser = _parser("demonstrate", "Lets a scripted player or a model play, for warm_start.")
    plays = parser.add_mutually_exclusive_group()
    plays.add_argument("--player", metavar="MODULE:FUNCTION", help="the scripted player; TASK_player:play by default")
    plays.add_argument("--endpoint", metavar="URL", help="of an OpenAI-compatible server, up to /v1; plays instead")
    about = "plays with the skill in its prompts; what it wins is written without the skill, for itself to learn"
    plays.add_argument("--policy", metavar="MODEL", help=about)
    parser.add_argument("--endpoint_model", default="default", help="the model's name there")
    parser.add_argument("--temperature", type=number, default=1.0, help="of the endpoint or the policy")
    parser.add_argument("--episodes", type=int, help=f"{SCRIPTED} of a scripted player, {ASKED} of a model")
    parser.add_argument(
        "--won_only", action="store_true", help="leave out episodes that were not won; so does --policy"
    )
    parser.add_argument("--skilled_share", type=number, help=SKILLED)
    parser.add_argument("--model", help="the policy to be, whose tokenizer counts; as in check")
    parser.add_argument("--max_prompt_length", type=int, help="of the policy; the recipe's by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=place, default=FILE)
    given = parser.parse_args(argv)
    parser.at_least(given, LEAST)
    parser.read_with(given, "endpoint", "endpoint_model", *(() if given.policy else ("temperature",)))
    with reported("alignopsd demonstrate", resumes=None), setup():
        if given.output.is_dir():
            raise ValueError(f"--output {path_as_given(given.output)} is a folder; name a file")
        check_folder(str(given.output.parent), "output")
        refuse([given.output], "demonstrate")
        from alignopsd_trl.commands.own_task.demonstrations import demonstrate, write_demonstrations
        from alignopsd_trl.commands.own_task.playing import Endpoint, scripted

        task, model = _task(given), given.policy or given.model
        if given.policy is not None:
            from alignopsd_trl.commands.own_task.own_play import own_play

            actor, task = own_play(given.policy, task, given.seed, given.temperature, given.max_prompt_length)
        elif given.endpoint is None:
            actor = scripted(task.name, given.player, given.seed)
        else:
            prompt, tokens = task.declared.prompt, task.limit("max_completion_length")
            actor = Endpoint(given.endpoint, given.endpoint_model, prompt, given.temperature, tokens)
        share = (1.0 if given.policy else SKILLED_SHARE) if given.skilled_share is None else given.skilled_share
        found = demonstrate(
            task,
            actor,
            episodes=given.episodes or (ASKED if given.endpoint or given.policy else SCRIPTED),
            tokenizer=_tokenizer(model, task),
            won_only=given.won_only or given.policy is not None,
            skilled_share=share,
            hidden=given.policy is not None,
            **{name: getattr(given, name) for name in ("seed", "max_prompt_length", "skill_bank", "encoder")},
        )
        write_demonstrations(given.output, found.rows)
        following = f"alignopsd warm_start {shlex.quote(given.task)}"
        following += f" --model {shlex.quote(given.policy)}" if given.policy else ""
        print(f"{found.told()}\n{given.output} is written; next: {following}")


def warm_start(argv: Sequence[str]) -> None:
    """Trains a first policy, and prints its results on the panel (evaluation set)."""
    from alignopsd_trl.commands.own_task.options import WarmStartConfig

    parser = _parser("warm_start", "Trains a first policy on demonstrations, by default as train.py's START.")
    parser.add_argument("--data", type=place, default=FILE, help="from alignopsd demonstrate")
    for one in fields(WarmStartConfig):
        _add(parser, one)
    parser.add_argument("--output", type=place, default=FOLDER)
    about = "of the test panel that are played afterwards; 100 for 'tiny', else 32; 0 for none"
    parser.add_argument("--tasks", type=int, help=about)
    given = parser.parse_args(argv)
    with reported("alignopsd warm_start", resumes=None), setup():
        flags = {one.name: getattr(given, one.name) for one in fields(WarmStartConfig) if hasattr(given, one.name)}
        config = WarmStartConfig(**flags)
        from alignopsd_trl.commands.own_task.demonstrations import read_demonstrations

        check_folder(str(given.output), "output")
        rows, task = read_demonstrations(given.data), _task(given)
        if flags.get("model", task.start.model) == task.start.model:
            config = replace(task.start, **flags)
        elif Path(config.model).resolve() == Path(given.output).resolve():  # it goes on from an earlier one
            config = replace(task.start, **{"learning_rate": task.start.rate, "minutes": task.start.time, **flags})
        from alignopsd_trl.commands.own_task.warm_start.warm_start import report, warm_start

        made = warm_start(rows, given.output, config, settings=task.preset)
        size = f"{made.model.num_parameters():,} parameters, {len(made.tokenizer):,} tokens"
        print(f"{given.output}: {size}, {made.effort.told()} on {len(rows)} turns", flush=True)
        tasks = (100 if config.fresh else 32) if given.tasks is None else given.tasks
        if tasks > 0:
            own = {"skill_bank": given.skill_bank, "encoder": given.encoder, "anyway": given.tasks is not None}
            print(report(task, made, task.suite.panel("test").head(tasks), rows, **own))


def _parser(name: str, description: str) -> CommandParser:
    """Makes a parser with the arguments that all commands on a task share."""
    parser = CommandParser(prog=f"alignopsd {name}", description=description)
    parser.add_argument("task", metavar="TASK", help=TASK)
    parser.add_argument("--environment_options", help="JSON, handed to suite()")
    parser.add_argument("--rows", metavar="FILE", help="JSON lines: the tasks of a TRL class or an OpenEnv server")
    parser.add_argument("--skill_bank", help="as in a recipe; the suite's own by default")
    parser.add_argument("--encoder", default="lexical", help="ranks skills")
    return parser


def _add(parser: argparse.ArgumentParser, option: Any) -> None:
    """Adds a field of a dataclass as a flag, which has no value unless it is given."""
    kinds = {"int": int, "float": float, "float | None": float, "str": str}
    kind: dict[str, Any] = {"action": "store_true"} if option.type == "bool" else {"type": kinds[option.type]}
    parser.add_argument(f"--{option.name}", default=argparse.SUPPRESS, help=option.metadata["help"], **kind)


def _task(given: argparse.Namespace) -> Task:
    from alignopsd_trl.commands.own_task.task import find_task

    return find_task(given.task, environment_options(given.environment_options), given.rows)


def _tokenizer(model: str | None, task: Task) -> Any:
    from alignopsd_trl.commands.own_task.warm_start.warm_start import known_tokenizer

    return known_tokenizer(model or task.start.model)

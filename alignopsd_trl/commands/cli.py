"""The command line ``alignopsd``, with a subcommand for each task; a subcommand is imported when it runs.

Several processes::

    accelerate launch --config_file $(alignopsd --files fsdp2) -m alignopsd_trl.commands.cli train webshop_7b
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence

from alignopsd_trl.commands.launch.values import shipped_files, shipped_or
from alignopsd_trl.common.command import TRACEBACK
from alignopsd_trl.common.errors import WRONG
from alignopsd_trl.common.options import near
from alignopsd_trl.common.reporting import reported

HOME = "alignopsd_trl.commands"


def main(argv: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if argv is None else argv)
    with reported(" ".join(["alignopsd", *given[:1]]), resumes=None):
        _run(given)


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return
    if argv[0] == "--files":
        print(files(argv[1:]))
        return
    if argv[0] not in COMMANDS:
        _refuse(f"no command {argv[0]!r}; {near(argv[0], [*COMMANDS])}choose one of {', '.join(COMMANDS)}")
    call, _ = COMMANDS[argv[0]]
    words = argv[1:] if call is train else [word for word in argv[1:] if word != TRACEBACK]  # train reads it itself
    status = (call if callable(call) else _found(call))(words)
    if isinstance(status, int) and status:
        raise SystemExit(status)


def usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{told}" for name, (_, told) in COMMANDS.items()]
    last = "alignopsd --files [NAME] prints the paths of the shipped studies and accelerate files, or of one."
    last += "\nalignopsd COMMAND ... --traceback shows where an error comes from."
    return "\n".join(["usage: alignopsd COMMAND ...   (alignopsd COMMAND --help)", "", *lines, "", last])


def train(argv: list[str]) -> None:
    """Runs a recipe by its name, as its script does, which may also make the first policy."""
    known = _found("launch.presets:preset_names")()
    recipes = f"{', '.join(known)}, or a module with a mapping PRESET"
    if argv[:1] in (["-h"], ["--help"]):
        print("usage: alignopsd train RECIPE [--plan] [--FLAG VALUE ...]   (alignopsd train webshop_tiny --help)")
        print(f"\nRECIPE: {recipes}")
        return
    if not argv or argv[0].startswith("-"):
        _refuse(f"train needs the name of a recipe first: {recipes}")
    # A recipe's own command line ends with a message, not a traceback.
    name = _found("launch.presets:shipped_name")(argv[0])
    sys.argv = [f"alignopsd train {name}", *argv[1:]]
    if script := _found("launch.presets:script_of")(name):
        runpy.run_module(script, run_name="__main__")
    else:
        _found("launch.recipe:main")(name)


def study(argv: list[str]) -> int:
    return _found("study.__main__:command")([*map(shipped_or, argv[:1]), *argv[1:]])


def check(argv: list[str]) -> int | None:
    """Checks a task, or lets the user play a shipped environment by hand."""
    if "--play" not in argv:
        return _found("own_task.commands:check")(argv)
    games = _found("..environments.shipped:BENCHMARKS")
    if argv[0] not in games:
        _refuse(f"check --play needs an environment first: {', '.join(games)}")
    words = [word for word in argv[1:] if word != "--play"]
    return _found(f"..environments.{argv[0]}.__main__:main")(words)


def files(argv: list[str]) -> str:
    """Returns the paths of the shipped studies and accelerate files, or of the named one."""
    found = shipped_files()
    if argv and argv[0] not in found:
        _refuse(f"no shipped file {argv[0]!r}; {near(argv[0], [*found])}there are {', '.join(found)}")
    return str(found[argv[0]]) if argv else "\n".join(f"{name:<20}{path}" for name, path in found.items())


def _found(place: str):
    """Imports ``module:name``, where the module is one of the commands, or with ``..`` of the package."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module if module[0] == "." else f".{module}", HOME), name)


def _refuse(reason: str) -> None:
    print(f"alignopsd: {reason}", file=sys.stderr)
    raise SystemExit(WRONG)


COMMANDS = {
    "new": ("own_task.commands:new", "a task of your own, which runs as it is written"),
    "check": (check, "what would ruin a run on a task, found without a policy; --play: play it by hand"),
    "demonstrate": ("own_task.commands:demonstrate", "let a scripted player or an endpoint play a task"),
    "warm_start": ("own_task.commands:warm_start", "a first policy from these demonstrations"),
    "train": (train, "a recipe: alignopsd train webshop_tiny [--method grpo ...]; --plan says what it would run"),
    "evaluate": ("launch.evaluate:command", "play a panel with a policy"),
    "measure": (
        "measure.commands:measure",
        "what to train with: lift of the skills, all or each, and credit of methods against Monte Carlo advantages",
    ),
    "study": (study, "methods x environments x seeds under one protocol"),
    "view": ("viewer.__main__:view", "a run as a page: where the credit went; several runs: compared"),
    "analyse": ("analysis.__main__:main", "the paper's analyses of a run: a figure and its data"),
    "push": ("..results.push:main", "a finished run to the Hub"),
}
"""Name of a subcommand -> the function that takes its arguments, or its import path; the line of ``--help``."""


if __name__ == "__main__":
    main()

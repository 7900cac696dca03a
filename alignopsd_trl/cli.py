"""``alignopsd``: one command line over the entries that are there; a subcommand's imports wait until it is run.

Several processes: ``accelerate launch --config_file $(alignopsd files fsdp2) -m alignopsd_trl.cli train webshop_7b``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from alignopsd_trl.launch.errors import stoppable
from alignopsd_trl.launch.shipped import shipped_files, shipped_or
from alignopsd_trl.options import near


def main(argv: Sequence[str] | None = None) -> None:
    """Hands the rest of the command line to a subcommand."""
    given = list(sys.argv[1:] if argv is None else argv)
    with stoppable(" ".join(["alignopsd", *given[:1]])):
        _run(given)


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return
    if argv[0] not in COMMANDS:
        _refuse(f"no command {argv[0]!r}; {near(argv[0], [*COMMANDS])}choose one of {', '.join(COMMANDS)}")
    call, _ = COMMANDS[argv[0]]
    status = (call if callable(call) else _found(call))(argv[1:])
    if isinstance(status, int) and status:
        raise SystemExit(status)


def usage() -> str:
    """The page of ``alignopsd --help``."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{told}" for name, (_, told) in COMMANDS.items()]
    return "\n".join(["usage: alignopsd COMMAND ...   (alignopsd COMMAND --help)", "", *lines])


def train(argv: list[str], command: str = "train") -> None:
    """Runs a recipe by its name, as its script would."""
    recipes = f"{', '.join(_recipes())}, or a module with a mapping PRESET"
    if _wants_help(argv):
        print(f"usage: alignopsd {command} RECIPE [--FLAG VALUE ...]   (alignopsd {command} webshop_tiny --help)")
        print(f"\nRECIPE: {recipes}")
        return
    if not argv or argv[0].startswith("-"):
        _refuse(f"{command} needs the name of a recipe first: {recipes}")
    # A recipe's own command line ends with a message, not a trace.
    sys.argv = [f"alignopsd {command} {argv[0]}", *argv[1:]]
    _found("alignopsd_trl.launch.recipe:main")(argv[0])


def plan(argv: list[str]) -> None:
    """A recipe's ``--plan``."""
    train([*argv, "--plan"] if argv and not _wants_help(argv) else argv, "plan")


def study(argv: list[str]) -> int:
    """A study by the path or the name of its file."""
    return _found("alignopsd_trl.study.__main__:command")([*map(shipped_or, argv[:1]), *argv[1:]])


def play(argv: list[str]) -> None:
    """An environment's own way to be played by hand."""
    games = _found("alignopsd_trl.environments.shipped:BENCHMARKS")
    if _wants_help(argv):
        print("usage: alignopsd play ENVIRONMENT ...   (alignopsd play webshop --help)")
        print(f"\nENVIRONMENT: {', '.join(games)}")
        return
    if not argv or argv[0] not in games:
        _refuse(f"play needs an environment: {', '.join(games)}")
    _found(f"alignopsd_trl.environments.{argv[0]}.__main__:main")(argv[1:])


def files(argv: list[str]) -> None:
    """Paths of the shipped studies and accelerate files; of one, if it is named."""
    found = shipped_files()
    if argv and argv[0] not in found:
        _refuse(f"no shipped file {argv[0]!r}; {near(argv[0], [*found])}there are {', '.join(found)}")
    print(found[argv[0]] if argv else "\n".join(f"{name:<20}{path}" for name, path in found.items()))


def _wants_help(argv: Sequence[str]) -> bool:
    return argv[:1] in (["-h"], ["--help"])


def _recipes() -> list[str]:
    return _found("alignopsd_trl.launch.presets:preset_names")()


def _found(place: str):
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _refuse(reason: str) -> None:
    print(f"alignopsd: {reason}", file=sys.stderr)
    raise SystemExit(2)


COMMANDS = {
    "new": ("alignopsd_trl.own_task.commands:new", "a task of your own, which runs as it is written"),
    "check": ("alignopsd_trl.own_task.commands:check", "what would ruin a run on a task, found without a policy"),
    "demonstrate": ("alignopsd_trl.own_task.commands:demonstrate", "let a scripted player or an endpoint play a task"),
    "warm_start": ("alignopsd_trl.own_task.commands:warm_start", "a first policy from these demonstrations"),
    "train": (train, "a recipe: alignopsd train webshop_tiny [--method grpo ...]"),
    "plan": (plan, "what a recipe would run, without loading weights"),
    "evaluate": ("alignopsd_trl.launch.evaluate:command", "play a panel with a policy"),
    "fidelity": (
        "alignopsd_trl.measure.fidelity:command",
        "is the credit right: methods against Monte Carlo advantages of the same turns",
    ),
    "tune": (
        "alignopsd_trl.measure.tune:command",
        "what to train with: lift of the skills and credit of methods, measured before training",
    ),
    "study": (study, "methods x environments x seeds under one protocol"),
    "view": ("alignopsd_trl.viewer.__main__:view", "a run as a page: where the credit went"),
    "compare": ("alignopsd_trl.viewer.__main__:compare", "runs against the first of them, as a page"),
    "analyse": ("alignopsd_trl.analysis.__main__:main", "the paper's analyses of a run: a figure and its data"),
    "push": ("alignopsd_trl.sharing.__main__:main", "a finished run to the Hub"),
    "play": (play, "play an environment by hand"),
    "files": (files, "where the shipped studies and accelerate files are"),
}
"""Name of a subcommand to what takes its arguments (a function, or where it is), and what ``--help`` says of it."""


if __name__ == "__main__":
    main()

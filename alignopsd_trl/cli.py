"""``alignopsd``: one command line over the entries that are there; a subcommand's imports wait until it is run.

Several processes: ``accelerate launch --config_file $(alignopsd files fsdp2) -m alignopsd_trl.cli train webshop_7b``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    """Hands the rest of the command line to a subcommand."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return
    if argv[0] not in COMMANDS:
        _refuse(f"no command {argv[0]!r}; choose one of {', '.join(COMMANDS)}")
    call, _ = COMMANDS[argv[0]]
    status = (call if callable(call) else _found(call))(argv[1:])
    if isinstance(status, int) and status:
        raise SystemExit(status)


def usage() -> str:
    """The page of ``alignopsd --help``."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{told}" for name, (_, told) in COMMANDS.items()]
    return "\n".join(["usage: alignopsd COMMAND ...   (alignopsd COMMAND --help)", "", *lines])


def train(argv: list[str]) -> None:
    """Runs a recipe by its name."""
    if not argv or argv[0].startswith("-"):
        _refuse(f"train needs the name of a recipe first: {', '.join(_recipes())}, or a module with a mapping PRESET")
    _found("alignopsd_trl.launch.recipe:main")(argv[0], argv[1:])


def plan(argv: list[str]) -> None:
    """A recipe's ``--plan``."""
    train([*argv, "--plan"] if argv else [])


def study(argv: list[str]) -> int:
    """A study by the path or the name of its file."""
    if argv and not Path(argv[0]).exists() and argv[0] in shipped_files():
        argv = [str(shipped_files()[argv[0]]), *argv[1:]]
    return _found("alignopsd_trl.study.__main__:main")(argv)


def play(argv: list[str]) -> None:
    """An environment's own way to be played by hand."""
    games = ("webshop", "alfworld", "searchqa")
    if not argv or argv[0] not in games:
        _refuse(f"play needs an environment: {', '.join(games)}")
    _found(f"environments.{argv[0]}.__main__:main")(argv[1:])


def files(argv: list[str]) -> None:
    """Paths of the shipped studies and accelerate files; of one, if it is named."""
    found = shipped_files()
    if argv and argv[0] not in found:
        _refuse(f"no shipped file {argv[0]!r}; there are {', '.join(found)}")
    print(found[argv[0]] if argv else "\n".join(f"{name:<20}{path}" for name, path in found.items()))


def shipped_files() -> dict[str, Path]:
    """Name to path of the studies and accelerate files, in an installed package or in the repository."""
    package = Path(__file__).parent
    folder = package / "recipes" if (package / "recipes").is_dir() else package.parent / "recipes"
    return {path.stem: path for kind in ("accelerate", "studies") for path in sorted((folder / kind).glob("*.yaml"))}


def _recipes() -> list[str]:
    return _found("alignopsd_trl.launch.presets:preset_names")()


def _found(place: str):
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _refuse(reason: str) -> None:
    print(f"alignopsd: {reason}", file=sys.stderr)
    raise SystemExit(2)


COMMANDS = {
    "train": (train, "a recipe: alignopsd train webshop_tiny [--method grpo ...]"),
    "plan": (plan, "what a recipe would run, without loading weights"),
    "evaluate": ("alignopsd_trl.evaluation.command:main", "play a panel with a policy"),
    "study": (study, "methods x environments x seeds under one protocol"),
    "view": ("alignopsd_trl.viewer.__main__:view", "a run as a page: where the credit went"),
    "compare": ("alignopsd_trl.viewer.__main__:compare", "runs against the first of them, as a page"),
    "push": ("alignopsd_trl.sharing.__main__:main", "a finished run to the Hub"),
    "play": (play, "play an environment by hand"),
    "files": (files, "where the shipped studies and accelerate files are"),
}
"""Name of a subcommand to what takes its arguments (a function, or where it is), and what ``--help`` says of it."""


if __name__ == "__main__":
    main()

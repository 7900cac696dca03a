"""Plays a game in the terminal: ``python -m alignopsd_trl.environments.alfworld --type heat --seed 3``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from alignopsd_trl.environments.alfworld import suite
from alignopsd_trl.environments.alfworld.engine.categories import CATEGORIES, parse_task_type
from alignopsd_trl.environments.alfworld.engine.games import read_game
from alignopsd_trl.environments.alfworld.engine.generator import Variant, generate_all
from alignopsd_trl.environments.alfworld.engine.packages import MissingPackage, require
from alignopsd_trl.environments.alfworld.environment import AlfWorldEnvironment, Factory
from alignopsd_trl.environments.alfworld.options import AlfWorldOptions
from alignopsd_trl.environments.alfworld.player import Explorer
from alignopsd_trl.environments.alfworld.tasks import SPLITS, source
from alignopsd_trl.environments.base import Opening, Step
from alignopsd_trl.environments.batch import ThreadedBatch
from alignopsd_trl.environments.by_hand import START, ask, find_task, numbered

ENTRIES = {
    "3": "the command of that number",
    "go to fridge 1": "a command of the list as it stands",
    "hint": "what an explorer would do",
}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    console = Console(highlight=False)
    environment = Factory(AlfWorldOptions(engine=arguments.engine, max_turns=arguments.max_steps))()
    try:
        _play(console, environment, _task(arguments))
    except (MissingPackage, FileNotFoundError, ValueError, RuntimeError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        console.print()
    finally:
        environment.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alignopsd check alfworld --play", description=__doc__)
    parser.add_argument("--type", default="pick", help=f"task type: {', '.join(c.lower() for c in CATEGORIES)}")
    parser.add_argument("--seed", type=int, default=0, help="of the generated game")
    parser.add_argument("--held-out", action="store_true", help="in a room that training never sees")
    parser.add_argument("--task", metavar="ID", help="play this task of a split (made if it is not there yet)")
    parser.add_argument("--split", default="valid_seen", choices=SPLITS, help="of --task (default: %(default)s)")
    parser.add_argument("--game", type=Path, help="folder of an official game (holds game.tw-pddl) to play instead")
    parser.add_argument("--engine", default="fast", choices=("fast", "plain"))
    parser.add_argument("--max-steps", type=int, default=50, help="commands until the game ends")
    return parser


def _task(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.game is not None:
        folder = arguments.game.resolve()
        return {"task_id": f"{folder.parent.name}/{folder.name}", "game": read_game(folder)}
    require()
    if arguments.task is not None:
        row = find_task(suite().panel(arguments.split), arguments.task)
        games = source(AlfWorldOptions())
        return {**row, "game": read_game(games.root(arguments.split) / row["task_id"])}
    kind = parse_task_type(arguments.type)
    batch = ThreadedBatch(Factory(), 1, time_limit=600.0)
    game = generate_all([(kind, arguments.seed)], batch, 1, Variant(held_out=arguments.held_out))[0]
    batch.close()
    return {"task_id": game.task_id, "game": game.joined()}


def _play(console: Console, environment: AlfWorldEnvironment, task: Mapping[str, Any]) -> None:
    opening = environment.reset(**task)
    explorer = Explorer()
    explorer.begin(opening.observation, opening.task_text)
    console.print(Panel(escape(opening.observation), title=f"{opening.category}: {escape(task['task_id'])}"))
    console.print(f"[dim]{START}[/dim]")
    seen: Opening | Step = opening
    for count in range(1, environment.max_turns + 1):
        hint = explorer.act(seen.observation, seen.admissible)
        action = _ask(console, seen.admissible, hint, f"{count}/{environment.max_turns}")
        if action is None:
            return
        seen = step = environment.step(action)
        console.print(Panel(escape(f"> {action}\n\n{step.observation}"), border_style="green" if step.won else "none"))
        if step.done:
            break
    console.print(f"won: {step.won} | score: {step.score:g} | steps: {count} | reward: {step.reward:g}")


def _ask(console: Console, admissible: Sequence[str], hint: str, place: str) -> str | None:
    """Reads the next command; None to leave."""
    for number, command in enumerate(admissible, start=1):
        console.print(f"[cyan]{number:3}[/cyan] {escape(command)}")
    return ask(console, place, lambda typed: numbered(typed, admissible), ENTRIES, {"hint": hint})


if __name__ == "__main__":
    main()

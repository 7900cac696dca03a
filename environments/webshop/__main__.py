"""Plays WebShop by hand: ``python -m alignopsd_trl.environments.webshop --seed 3``.

Type a number to take an action of the list, other words to search for them (where there is a search bar), or a whole
action such as ``search[red shoes]`` from anywhere. ``?`` lists what can be typed, ``q`` leaves.
"""

from __future__ import annotations

import argparse
from random import Random

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from alignopsd_trl.environments.by_hand import START, ask, find_task, numbered
from alignopsd_trl.environments.webshop.engine import pages
from alignopsd_trl.environments.webshop.engine.pages import Role
from alignopsd_trl.environments.webshop.engine.session import Effect, ShopSession, parse
from alignopsd_trl.environments.webshop.environment import open_shops
from alignopsd_trl.environments.webshop.options import WebShopOptions
from alignopsd_trl.environments.webshop.tasks import Tasks

ENTRIES = {
    "3": "the action of that number",
    "red shoes": "search for these words, where there is a search bar",
    "search[red shoes]": "the same, from anywhere",
    "click[next >]": "an action as it stands",
}
_STYLES = {Role.BUTTON: "bold cyan", Role.PRODUCT: "bold yellow", Role.OPTION: "green", Role.TEXT: "default"}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = WebShopOptions(data_dir=options.data_dir, human_goals=options.human_goals)
    shop = open_shops(chosen).of_seed(None)
    generator = Random(options.seed)
    index = shop.goals.draw(generator) if options.goal is None else options.goal
    if options.task is not None:
        tasks = Tasks(open_shops(chosen))
        index = find_task([*tasks.rows("test"), *tasks.rows("train")], options.task)["goal_index"]
    if not 0 <= index < len(shop.goals):
        _parser().error(f"argument --goal: must be 0 to {len(shop.goals) - 1}, got {index}")
    console = Console()
    session = ShopSession(shop, shop.goals[index], generator)
    console.print(f"goal {index} of {len(shop.goals)}; {START}", style="dim")
    return _play(console, session, options.max_steps)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alignopsd check webshop --play", description="Shop in the terminal.")
    parser.add_argument("--seed", type=int, default=0, help="draws the goal (default: %(default)s)")
    parser.add_argument("--task", metavar="ID", help="play this task, e.g. canonical-00012")
    parser.add_argument("--goal", type=int, help="take this goal of the list instead")
    parser.add_argument("--data-dir", help="folder of the official data files (default: the embedded catalogue)")
    parser.add_argument("--human-goals", action="store_true", help="instructions of people instead of synthetic ones")
    parser.add_argument("--max-steps", type=int, default=15, help="steps before the shop closes (default: %(default)s)")
    return parser


def _play(console: Console, session: ShopSession, max_steps: int) -> int:
    for left in range(max_steps, 0, -1):
        actions = _show(console, session)
        action = ask(console, f"{left} steps left ", lambda typed, now=actions: _action(typed, now, session), ENTRIES)
        if action is None:
            return 1
        answer = session.step(action)
        if answer.done:
            _receipt(console, session, answer)
            return 0
    console.print("The shop closes: no steps left, nothing was bought.", style="red")
    return 1


def _show(console: Console, session: ShopSession) -> list[str]:
    """Prints the page and the numbered actions; returns the actions."""
    shown = [
        f"[{_STYLES[piece.role]}]{escape(text)}[/]"
        for piece in session.pieces
        if (text := pages.plain_piece(piece.text)) is not None
    ]
    chosen = "".join(f"\n[green]chosen {escape(f'{name}: {value}')}[/]" for name, value in session.options.items())
    console.print(Panel("\n".join(shown) + chosen, title=session.kind.value))
    actions = [f"click[{name}]" for name in session.clickables if name != "search"]
    console.print("   ".join(f"[bold]{number}[/] {escape(action)}" for number, action in enumerate(actions, 1)))
    return actions


def _action(typed: str, actions: list[str], session: ShopSession) -> str | None:
    """Returns the action of an entry on this page; None if it would do nothing."""
    if not typed or typed.isdecimal():
        return numbered(typed, actions)
    whole = parse(typed)
    if whole is not None:
        return typed if whole[0] == "search" or session.admits(typed) else None
    return f"search[{typed}]" if session.has_search_bar else None


def _receipt(console: Console, session: ShopSession, answer: Effect) -> None:
    table = Table(title=f"score {answer.reward:g} of 1")
    table.add_column("part")
    table.add_column("value", justify="right")
    for name, value in (answer.breakdown or {}).items():
        table.add_row(name, f"{value:.3g}" if isinstance(value, float) else str(value))
    goal = session.goal
    wanted = f"{goal['name']}, {goal['goal_options'] or 'no options'}"
    console.print(Panel(escape(f"wanted: {wanted}\nbought: {session.asin}, {session.options or 'no options'}")))
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())

"""Plays Search-QA in the terminal.

Usage:

    python -m alignopsd_trl.environments.searchqa --seed 3

A line is a query; a line that starts with ``=`` is the answer, as in ``= Lumloom``. ``?`` lists what can be typed,
``q`` leaves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel

from alignopsd_trl.environments.base import Step
from alignopsd_trl.environments.by_hand import START, ask, find_task
from alignopsd_trl.environments.searchqa import suite
from alignopsd_trl.environments.searchqa.engine.actions import ANSWER, SEARCH, Action
from alignopsd_trl.environments.searchqa.engine.observations import read_titles

ENTRIES = {"capital of Marevia": "search for these words", "= Lumloom": "give the answer, which ends the episode"}


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="alignopsd check searchqa --play", description="Play Search-QA.")
    options.add_argument("--seed", type=int, default=0, help="which question of the panel")
    options.add_argument("--panel", default="test", help="test, train, or one data source as in test/hotpotqa")
    options.add_argument("--task", metavar="ID", help="play this task of the panel, e.g. nq/test_0")
    given = options.parse_args(arguments)
    console = Console()
    play(console, given.panel, given.seed, given.task)


def play(console: Console, panel: str, seed: int, task_id: str | None = None) -> None:
    """Plays one episode, from the question to the verdict."""
    game = suite()
    tasks = game.panel(panel)
    task = tasks.rows[seed % len(tasks)] if task_id is None else find_task(tasks, task_id)
    episode = game.factory()
    opening = episode.reset(**task)
    console.print(Panel(opening.observation, title=f"{task['task_id']} (panel {panel}, {tasks.checksum})"))
    console.print(f"a query, or = and the answer; {START}", style="dim")
    for turn in range(1, episode.max_turns + 1):
        action = ask(console, f"turn {turn} of {episode.max_turns}", read, ENTRIES)
        if action is None:
            return
        step = episode.step(action)
        if step.done or turn == episode.max_turns:
            return show_end(console, step, task["golden_answers"])
        for title, text in read_titles(step.observation).items():
            console.print(Panel(text, title=title, title_align="left"))
        if not step.info["passages"]:
            console.print("No passage matches.")


def read(typed: str) -> str | None:
    """Returns the action of an entry; None for an empty query or answer."""
    kind, text = (ANSWER, typed[1:].strip()) if typed.startswith("=") else (SEARCH, typed)
    return str(Action(kind, text)) if text else None


def show_end(console: Console, step: Step, golden_answers: Sequence[str]) -> None:
    verdict = "[green]Right.[/green]" if step.won else "[red]Wrong.[/red]" if step.metrics["answered"] else "No answer."
    console.print(f"{verdict} Accepted: {', '.join(golden_answers)}.")
    console.print(f"Reward {step.reward:g} after {step.metrics['turns']} turns, {step.metrics['searches']} searches.")


if __name__ == "__main__":
    main()

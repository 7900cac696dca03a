"""Play Search-QA in the terminal.

Usage:

    python -m environments.searchqa --seed 3

A line is a query; a line that starts with ``=`` is the answer, as in ``= Lumloom``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.prompt import Prompt

from environments.base import Step
from environments.searchqa import suite
from environments.searchqa.actions import ANSWER, SEARCH, Action
from environments.searchqa.observations import read_titles


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m environments.searchqa", description="Play Search-QA.")
    options.add_argument("--seed", type=int, default=0, help="which question of the panel")
    options.add_argument("--panel", default="test", help="test, train, or one data source as in test/hotpotqa")
    given = options.parse_args(arguments)
    console = Console()
    try:
        play(console, given.panel, given.seed)
    except (EOFError, KeyboardInterrupt):
        console.print("\nGood-bye.")


def play(console: Console, panel: str, seed: int) -> None:
    """One episode, from the question to the verdict."""
    game = suite()
    tasks = game.panel(panel)
    task = tasks.rows[seed % len(tasks)]
    episode = game.factory()
    console.print(Panel(episode.reset(**task), title=f"{task['task_id']} (panel {panel}, {tasks.checksum})"))
    for turn in range(1, episode.max_turns + 1):
        line = Prompt.ask(f"[bold]Turn {turn} of {episode.max_turns}[/bold]: a query, or = and the answer").strip()
        action = Action(ANSWER, line[1:].strip()) if line.startswith("=") else Action(SEARCH, line)
        step = episode.step(str(action))
        if step.done:
            return show_end(console, step, task["golden_answers"])
        for title, text in read_titles(step.observation).items():
            console.print(Panel(text, title=title, title_align="left"))
        if not step.info["passages"]:
            console.print("No passage matches.")


def show_end(console: Console, step: Step, golden_answers: Sequence[str]) -> None:
    verdict = "[green]Right.[/green]" if step.won else "[red]Wrong.[/red]" if step.info["answered"] else "No answer."
    console.print(f"{verdict} Accepted: {', '.join(golden_answers)}.")
    console.print(f"Reward {step.reward:g} after {step.info['turns']} turns, {step.info['searches']} searches.")


if __name__ == "__main__":
    main()

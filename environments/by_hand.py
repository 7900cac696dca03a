"""Reads the actions of a person who plays an environment in the terminal.

An entry is the number of an action, a word of the environment's own, ``?`` for a list of entries, or ``q`` (also Ctrl-C
and Ctrl-D) to leave. A wrong entry takes no turn.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

START = "? lists what can be typed, q leaves"


def ask(
    console: Console,
    place: str,
    read: Callable[[str], str | None],
    entries: Mapping[str, str],
    told: Mapping[str, str] | None = None,
) -> str | None:
    """Reads the next action; `None` to leave.

    Args:
        place: the state of the game, shown in front of the cursor.
        read: entry -> action; `None` for a wrong entry.
        entries: possible entries -> their meaning.
        told: entries that take no turn -> the answer to print.
    """
    while True:
        try:
            typed = console.input(f"[bold]{escape(place)}>[/bold] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return None
        if typed == "q":
            return None
        if typed == "?":
            for entry, meaning in {**entries, "?": "this list", "q": "leave"}.items():
                console.print(f"  [cyan]{escape(entry)}[/cyan]  {escape(meaning)}")
        elif told and typed in told:
            console.print(escape(told[typed]), style="dim")
        elif (action := read(typed)) is not None:
            return action
        else:
            said = f"{typed!r} does nothing here" if typed else "nothing was typed"
            console.print(f"[yellow]{escape(said)}, and cost nothing[/yellow]; {START}")


def numbered(typed: str, actions: Sequence[str]) -> str | None:
    """Returns the action with a number, counted from 1, or the typed text itself."""
    if typed.isascii() and typed.isdecimal():
        number = int(typed[:9])
        return actions[number - 1] if 1 <= number <= len(actions) else None
    return typed if typed in actions else None


def find_task(rows: Iterable[Mapping[str, Any]], task_id: str) -> Mapping[str, Any]:
    """Returns the row of a task.

    Raises:
        SystemExit: if there is none, with the nearest ids; the exit status is 2.
    """
    known = {row["task_id"]: row for row in rows}
    if task_id in known:
        return known[task_id]
    near = difflib.get_close_matches(task_id, known, n=3) or list(known)[:3]
    Console(stderr=True).print(f"error: there is no task {task_id!r}; there are {', '.join(near)}, ...", soft_wrap=True)
    raise SystemExit(2)

"""Shows progress: one live line on a terminal, an occasional line in log files and notebooks; forms of short texts."""

from __future__ import annotations

import html
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable

WIDE = 100  # columns where there is no terminal
NOW_AND_THEN = 15.0  # seconds between two lines where there is no terminal
AT_ONCE = 0.1  # seconds between two states of the live line


class Bar:
    """A progress bar on standard error: ``with Bar(...) as progress: progress(ended, turns)``. The estimate of the time
    left assumes that an episode ends at each turn with equal chance: each running episode needs as many more turns as
    were played for each ended one, up to ``most_turns``. ``beyond`` tells of the time after these episodes."""

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        total: int,
        title: str,
        disable: bool = False,
        most_turns: int | None = None,
        beyond: Callable[[], str] = lambda: "",
    ):
        self.total, self.title, self.disable = total, title, disable
        self._most_turns, self._beyond = most_turns, beyond
        self.ended = self.turns = 0

    def __enter__(self) -> Bar:
        self._began = self._shown = self.clock()
        return self

    def __call__(self, ended: int, turns: int = 0) -> None:
        """Adds ended episodes and played turns."""
        self.ended, self.turns = self.ended + ended, self.turns + turns
        now, live = self.clock(), sys.stderr.isatty()
        if self.disable or now - self._shown < (AT_ONCE if live else NOW_AND_THEN):
            return
        self._shown = now
        if live:
            show_status(str(self))
        else:
            print(f"{'':>9}  {self}", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if not self.disable:
            clear_status()

    def __str__(self) -> str:
        turns = f", {self.turns:,} turns" if self.turns else ""
        left = self.seconds_left()
        told = [f"about {duration(left)} left" if left is not None else "", self._beyond()]
        return "; ".join([f"{self.title}: {self.ended}/{self.total} episodes ended{turns}", *filter(None, told)])

    def seconds_left(self) -> float | None:
        """Returns an estimate of the seconds left; `None` before anything is known."""
        spent, waiting = self.clock() - self._began, self.total - self.ended
        if self.turns > 1:  # one alone says nothing: others are asked beside it
            lasts = min(self.turns / max(self.ended, 1), self._most_turns or float("inf"))
            return spent / self.turns * waiting * lasts
        return spent / self.ended * waiting if self.ended else None


def duration(seconds: float) -> str:
    """Formats seconds as ``1:05``, or ``2:01:05`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def quoted(text: str, width: int = 100) -> str:
    """Returns a text in quotes on one line, as findings show it."""
    return repr(cut(" ".join(text.split()), width))


def escaped(text: object) -> str:
    """Returns a text that Markdown shows as it is, on one line: no HTML, no code, no end of a table's cell."""
    return re.sub(r"([\\|`])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def markdown(head: Iterable[object], rows: Iterable[Iterable[object]], figures: bool = False) -> list[str]:
    """Returns the lines of a table in Markdown; cells are `escaped`. With ``figures`` all columns but the first stand
    at the right, as they are: their cells may have marks."""
    head = list(map(escaped, head))
    rule = ["---", *["---:" if figures else "---"] * (len(head) - 1)]
    cells = ([escaped(first), *(map(str, rest) if figures else map(escaped, rest))] for first, *rest in rows)
    return ["| " + " | ".join(row) + " |" for row in [head, rule, *cells]]


def distinct(names: Iterable[str]) -> list[str]:
    """Returns names with their number where one occurs twice."""
    known = list(names)
    return [name if known.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(known, 1)]


def show_status(text: str) -> None:
    """Shows one line on a terminal's standard error, in place of the line before."""
    if sys.stderr.isatty():
        sys.stderr.write("\r" + cut(text, shutil.get_terminal_size((WIDE, 24)).columns - 1) + "\x1b[K")
        sys.stderr.flush()


def clear_status() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

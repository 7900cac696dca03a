"""A parser for commands of few arguments: a wrong one ends them with one line and status 2."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from alignopsd_trl.common.options import near, whole_path


def place(text: str) -> Path:
    """Returns a path of the command line, resolved against the folder where the process started."""
    return Path(whole_path(text))


def number(text: str) -> float:
    """Returns a finite number of the command line."""
    if not math.isfinite(found := float(text)):
        raise argparse.ArgumentTypeError(f"{text} is no finite number")
    return found


def words(value: Any) -> list[str]:
    """Returns an option's value as the words of a command line."""
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]


TRACEBACK = "--traceback"
"""The argument of every command that shows where an error comes from."""

_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


class CommandParser(argparse.ArgumentParser):
    """The parser of ``alignopsd COMMAND``; its errors come without the usage."""

    def error(self, message: str) -> NoReturn:
        if found := _CHOICE.search(message):
            known = [one.strip(" '") for one in found["known"].split(",")]
            message = f"{message}; {near(found['word'], known)}".rstrip("; ")
        self.exit(2, f"{self.prog}: {message}; --help shows the arguments\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Does the same as argparse's, but refuses an empty value, which would stand for an omitted one."""
        words = sys.argv[1:] if args is None else list(args)
        for before, word in zip(["the first argument", *words], words, strict=False):
            if not word.strip() or (word.startswith("--") and word.endswith("=")):
                self.error(f"{word.rstrip('=').strip() or before} is empty; give a value, or leave it out")
        return super().parse_args(words, namespace)

    def read_with(self, given: argparse.Namespace, other: str, *names: str) -> None:
        """Ends the process where an argument is given that is read with another one alone, which is not given."""
        for name in names:
            value = getattr(given, name)
            if value not in (None, False, self.get_default(name)) and not getattr(given, other):
                self.error(f"--{name} {value} is read with --{other} alone; add that, or leave --{name} out")

    def at_least(self, given: argparse.Namespace, least: Mapping[str, float]) -> None:
        """Ends the process where a given argument is below its minimum, or too large for any count or seed."""
        for name, low in least.items():
            if (value := getattr(given, name, None)) is not None and not low <= value < 2**32:
                self.error(f"--{name} {value} must be {low} or more" + ("" if value < low else ", and below 2**32"))

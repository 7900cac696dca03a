"""Values that other defaults and the first checks depend on, read ahead of the whole command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def early_value(argv: Sequence[str], name: str, kind: Callable[[Any], Any], default: Any) -> Any:
    """A flag's value, else the YAML file's, else the default."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(f"--{name}", nargs="?")
    known, _ = parser.parse_known_args([word for word in argv])
    found = getattr(known, name)
    if found is None and name != "config":
        config = early_value(argv, "config", str, None)
        found = read_yaml(config).get(name) if config else None
    if found is None:
        return default
    try:
        return kind(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--{name} {found!r} must be of type {getattr(kind, '__name__', kind)}") from error


def read_value(text: str, given: str) -> Any:
    """A value on a command line, as YAML reads it.

    Args:
        given: what it was part of, for the message.

    Raises:
        ValueError: if it is no YAML.
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "no YAML"
        raise ValueError(f"{given}: {text!r} can't be read ({problem}); write a number, true, false or text") from error


def read_yaml(path: str | Path, flag: str = "--config ", such_as: str = "learning_rate: 1.0e-6") -> dict[str, Any]:
    """The mapping of a ``--config`` file, or of another that messages name by ``flag`` and explain by ``such_as``.

    Raises:
        ValueError: names the file, and the line that can't be read.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{flag}{path}: {error.strerror}; give the path of a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "no YAML"
        raise ValueError(f"{flag}{path}{where}: {problem}; write lines such as  {such_as}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{flag}{path} must hold a mapping, lines such as  {such_as}")
    return content

"""Reads values from a command line or a file: YAML, JSON, the argument that each belongs to; finds shipped files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from alignopsd_trl.common.options import as_type


def read_value(text: str, given: str) -> Any:
    """Reads a value of a command line as YAML; ``given`` is the argument that holds it, for the message."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "no YAML"
        raise ValueError(f"{given}: {text!r} can't be read ({problem}); write a number, true, false or text") from error


def read_yaml(path: str | Path, flag: str = "--config ", such_as: str = "learning_rate: 1.0e-6") -> dict[str, Any]:
    """Returns the mapping of a YAML file; messages name the file by ``flag`` and show ``such_as``. Raises `ValueError`
    that names the file, and the line that can't be read."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_OnceEach)
    except OSError as error:
        remedy = f"give the path of a YAML file with lines such as  {such_as}"
        raise ValueError(f"{flag}{path}: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{flag}{path}: byte {error.start + 1} is no UTF-8; save the file in that encoding") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "no YAML"
        raise ValueError(f"{flag}{path}{where}: {problem}; write lines such as  {such_as}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{flag}{path} must hold a mapping, lines such as  {such_as}")
    return content


class _OnceEach(yaml.SafeLoader):
    """A loader that raises for a name that occurs twice in a mapping, where YAML would drop the first value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                told = f"{key.value!r} stands there twice"
                raise ConstructorError(None, None, told, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def json_mapping(flag: str, given: Any) -> dict[str, Any]:
    """Returns the JSON of a flag such as ``--environment_options``, or its YAML, as a mapping; empty for `None`."""
    return as_type(given or None, dict[str, Any] | str | None, flag) or {}


environment_options = partial(json_mapping, "environment_options")


def options_over(usual: Any, given: Any) -> str | None:
    """Returns the environment options that a user gives over those of a preset, as JSON."""
    whole = environment_options(usual) | environment_options(given)
    return json.dumps(whole) if whole else None


def named(flag: str, value: Any, call: Callable[[], Any]) -> Any:
    """Returns the value of a call; adds the argument's name to its `ValueError`."""
    try:
        return call()
    except (ValueError, KeyError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{flag}={value!r}: {reason}") from error


def shipped_files() -> dict[str, Path]:
    """Returns the studies and launch files that come with the package, name to path."""
    recipes = Path(__file__).parents[2] / "recipes"
    return {path.stem: path for kind in ("accelerate", "studies") for path in sorted((recipes / kind).glob("*.*"))}


def shipped_or(path: str) -> str:
    """Returns an existing path as it is; else the shipped file of this name, with or without ``.yaml``, if any."""
    return path if Path(path).exists() else str(shipped_files().get(path.removesuffix(".yaml"), path))

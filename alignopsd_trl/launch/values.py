"""Values that somebody wrote, on a command line or in a file: YAML, JSON, and which argument they were for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl import ModelConfig


def policy_of(model: ModelConfig) -> str:
    """The policy's id or path, which every preset names."""
    assert model.model_name_or_path is not None, "presets are checked for model_name_or_path"
    return model.model_name_or_path


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
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_once_each(yaml))
    except OSError as error:
        raise ValueError(
            f"{flag}{path}: {error.strerror}; give the path of a YAML file with lines such as  {such_as}"
        ) from error
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


def _once_each(yaml: Any) -> Any:
    """A loader that refuses a name that stands twice in a mapping, whose first value would be lost."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def environment_options(given: Any) -> dict[str, Any]:
    """``--environment_options`` as a mapping."""
    return json_mapping("environment_options", given, '{"data_dir": "DATA"}')


def json_mapping(flag: str, given: Any, example: str) -> dict[str, Any]:
    """What a flag such as ``--environment_options`` holds as JSON, or a YAML file as a mapping."""
    if not given:
        return {}
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ValueError(f"{flag}={given!r} is no JSON ({error}); write for example '{example}'") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{flag}={given!r} must be a JSON mapping; write for example '{example}'")
    return dict(found)


def named(flag: str, value: Any, call: Callable[[], Any]) -> Any:
    """What a call returns; its `ValueError` says which argument it is about."""
    try:
        return call()
    except (ValueError, KeyError) as error:
        raise ValueError(f"{flag}={value!r}: {error}") from error

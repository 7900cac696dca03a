"""Keeps played episodes in a folder, as JSON: only the types named here come back, and reading them runs no code of a
file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import plain, read_json, write_json, write_text
from alignopsd_trl.environments.base import Record, View
from alignopsd_trl.rollout.monte_carlo.replays import MCRollout
from alignopsd_trl.rollout.renderer import Shown
from alignopsd_trl.runs.provenance import differences
from alignopsd_trl.turns import Seeds, StopReason, Thought, Trajectory, Turn

_KINDS: dict[str, Any] = {
    one.__name__: one for one in (Trajectory, Turn, Thought, Seeds, StopReason, MCRollout, Shown, View, Record)
}


class NotKept(ValueError):
    """Raised for a value of a type that can't be kept."""


def encoded(value: Any) -> Any:
    """Returns a value in JSON's types: others are an object of one name, their type's, with their content."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encoded(one) for one in value]
    if kind is tuple:
        return {"tuple": encoded(list(value))}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(name), encoded(one)] for name, one in value.items()]}
    if kind is not _KINDS.get(kind.__name__):
        raise NotKept(f"a {kind.__name__}")
    content = {"value": value.value} if kind is StopReason else getattr(value, "_asdict", lambda: vars(value))()
    return {kind.__name__: {name: encoded(one) for name, one in content.items()}}


def decoded(value: Any) -> Any:
    """Returns the value that `encoded` took. Raises `ValueError`, `TypeError`, `KeyError` or `AttributeError` for
    content of another form."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in ("tuple", "dict"):
        return (tuple if kind == "tuple" else dict)(decoded(content))
    return _KINDS[kind](**{name: decoded(one) for name, one in content.items()})


IDENTITY = "identity.json"


class Cache:
    """Episodes and rollouts in a folder; ``identity``: the settings that they depend on. Raises `ValueError` if the
    folder holds the parts of another measurement, or of one that is not known."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        self.folder, self._identity = folder, plain(identity)
        remedy = "choose another --output or remove the folder"
        before = read_json(folder / IDENTITY)
        if not before and any(folder.glob("*.json")):
            raise ValueError(f"{folder} holds files without a whole {IDENTITY}, which says whose; {remedy}")
        if changed := differences(before or self._identity, self._identity):
            shown = [f"{name}={there!r}, this one has {here!r}" for name, (there, here) in changed.items()]
            raise ValueError(f"{folder.parent} holds a measurement with {'; '.join(shown)}; {remedy}")

    def take(self, name: str, play: Callable[[], list[Any]]) -> list[Any]:
        """Returns the content of a name; plays it if the folder has none. A value of a type that only code could bring
        back is not kept: another start plays it again."""
        path = self.folder / f"{name}.json"
        with setup(), contextlib.suppress(FileNotFoundError):
            try:
                return [*iter(decoded(json.loads(path.read_text(encoding="utf-8"))))]
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise ValueError(f"{path} is damaged ({error!r:.80}); remove it, and it is played again") from error
        played = play()  # played first: an error leaves the folder free for another measurement
        write_json(self.folder / IDENTITY, self._identity)
        try:
            write_text(path, json.dumps(encoded(played)))
        except NotKept as error:
            print(f"{path} is not kept, since it holds {error}; another start plays it again", file=sys.stderr)
        return played

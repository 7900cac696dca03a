"""Finds the TASK of a command line: a module, a path, a class of TRL's convention or an OpenEnv address."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from alignopsd_trl.checks.tasks import refuse_given, trained_on
from alignopsd_trl.commands.launch import presets
from alignopsd_trl.commands.own_task.options import WarmStartConfig
from alignopsd_trl.commands.own_task.worlds import server_address
from alignopsd_trl.environments.adapters import AdaptedEnvironment, OpenEnvEnvironment, as_environment
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.batch import Declared, declared_by
from alignopsd_trl.environments.loading import find_module, importable, load

LIMITS = {"max_prompt_length": 4096, "max_completion_length": 512, "skill_tokens": 0}
"""Default tokens, as in `evaluate`, if neither the command line nor the task's recipe gives a number.
0 means a share of the prompt."""


@dataclass(frozen=True)
class Task:
    """A task as the commands use it.

    Args:
        name: the name of its module or class.
        suite: its environment and rows.
        preset: ``PRESET`` of the ``train.py`` in the module's folder; empty if there is none.
        start: its ``START``, the settings of the warm start; by default those of a fresh model.
    """

    name: str
    suite: Suite
    preset: Mapping[str, Any] = field(default_factory=dict)
    start: WarmStartConfig = field(default_factory=WarmStartConfig)

    @cached_property
    def declared(self) -> Declared:
        """What its environments declare, such as ``prompt`` and ``max_turns``, read once."""
        return declared_by(self.suite.factory)

    def limit(self, name: str, given: int | None = None) -> int:
        """Returns a length in tokens: the given one, else the recipe's, else the default."""
        return given or self.preset.get(name) or LIMITS[name]

    @cached_property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The training rows, made once. Raises `ValueError` if there are none, if one has no ``task_id``, or if a
        column is not the task's to name."""
        rows = list(self.suite.tasks("train"))
        if not rows:
            raise ValueError(f"task {self.name}: tasks('train') has no rows; return at least one")
        bare = next((number for number, row in enumerate(rows) if not row.get("task_id")), None)
        if bare is not None:
            raise ValueError(f"task {self.name}: row {bare} of tasks('train') has no task_id; give each row its own")
        if not isinstance(self.suite.factory, AdaptedEnvironment):
            refuse_given(rows[0], f"task {self.name}: tasks('train')")
        return rows

    def learnt(self) -> Sequence[Mapping[str, Any]]:
        """Returns the training rows without those that the recipe holds out. Raises `ValueError` as `rows`, or if none
        is left."""
        return self.rows[: trained_on(len(self.rows), self.preset.get("held_out"))]


def find_task(spec: str, options: Mapping[str, Any] | None = None, rows: str | None = None) -> Task:
    """Finds the task of a command line.

    Args:
        spec: a shipped recipe; a module with a function ``suite(**options)``, its file or its folder;
            ``MODULE:CLASS`` or ``FILE.py:CLASS`` for a class of TRL's convention; the address of an OpenEnv server.
        options: arguments of ``suite``.
        rows: a JSON-lines file with the rows of a class or of an address.

    Raises:
        ValueError: if the task can't be found; the message says what is missing.
    """
    if spec.startswith(("http://", "https://")):
        try:
            from openenv.core import GenericEnvClient
        except ImportError as error:
            raise ValueError(f"task {spec}: a client of OpenEnv is needed; pip install openenv") from error
        connect = partial(GenericEnvClient, base_url=server_address(spec))
        return _adapted(spec, OpenEnvEnvironment(connect, reward="sum"), rows)
    place, colon, name = spec.rpartition(":")
    if colon:
        return _adapted(name, as_environment(_class(place, name)), rows)
    preset = presets.preset(spec) if spec in presets.preset_names() else {}
    module = preset.get("environment") or importable(spec)
    if rows:
        raise ValueError(f"--rows {rows}: the suite of {spec} brings its own tasks; leave it out")
    try:
        suite = load(module, **dict(options or {}))
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "openenv":
            raise ValueError(f"task {spec}: a client of OpenEnv is needed; pip install openenv") from error
        raise ValueError(f"task {spec}: {error}; install it, or correct the import") from error
    found = sys.modules.get(module)  # a shipped task's module has another name
    recipe = vars(found) if hasattr(found, "PRESET") else presets.recipe_beside(found)
    return Task(module, suite, preset or recipe.get("PRESET", {}), recipe.get("START", WarmStartConfig()))


def _class(place: str, name: str) -> type:
    module = find_module(importable(place))
    if module is None:
        raise ValueError(f"task '{place}:{name}': there is no module {place!r} to import from here")
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f"task '{place}:{name}': {module.__file__} has no {name!r}")
    if not isinstance(found, type):
        raise ValueError(f"task '{place}:{name}' is a {type(found).__name__}, not a class; name a class with reset()")
    return found


def _adapted(name: str, environment: Any, rows: str | None) -> Task:
    """Makes a task of an environment of another convention; without ``rows`` it has 16 rows with empty prompts."""
    given = _read_rows(rows) if rows else [{"prompt": ""}] * 16
    tasks = [{"task_id": f"{name}/{number}", **row} for number, row in enumerate(given)]
    return Task(name, Suite.of_rows(name, environment, lambda split: tasks, description={}))


def _read_rows(path: str) -> list[dict[str, Any]]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"--rows {path}: {error}; give a file with a JSON object in each line") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"--rows {path}: give a file with a JSON object in each line")
    return rows

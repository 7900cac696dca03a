"""The earlier names of modules, which users' recipes, scripts and ``python -m`` lines go on using."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "alignopsd_trl"
ROOMS = {room: f"commands.{room}" for room in ("analysis", "cli", "launch", "measure", "own_task", "study", "viewer")}
MOVED = {**ROOMS, "precision": "commands.own_task.warm_start.precision"}
"""A module's earlier name within the package: the present one. What lies below it moved with it."""


def present(name: str) -> str | None:
    """Returns the present name of a module by its earlier one, `None` if it has not moved."""
    package, _, rest = name.partition(".")
    room, dot, below = rest.partition(".")
    return f"{package}.{MOVED[room]}{dot}{below}" if package == PACKAGE and room in MOVED else None


class Earlier(MetaPathFinder, InspectLoader):
    """Finds a module under its earlier name: the module itself, never a second one of the same file."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        now = present(name)
        if now is None or (found := find_spec(now)) is None:
            return None
        return ModuleSpec(name, self, origin=found.origin, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(str(present(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The import has put its own spec on the module; the module keeps that of its present name."""
        state = module.__spec__ and module.__spec__.loader_state
        module.__spec__ = state

    def get_code(self, fullname: str) -> CodeType | None:
        loader = getattr(find_spec(str(present(fullname))), "loader", None)
        return loader.get_code(present(fullname)) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        return None


def keep_earlier_names() -> None:
    if not any(isinstance(finder, Earlier) for finder in sys.meta_path):
        sys.meta_path.insert(0, Earlier())  # before the finder of files, which would load a file a second time

"""Finds the optional packages, ALFWorld's two logic files, and the folder of generated files.

None of them is imported before it is needed. `import alfworld` makes a folder and sets an environment variable, and
`import textworld` takes a second, so `alignopsd_trl.environments.alfworld` can be imported without either.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from functools import lru_cache
from pathlib import Path

_DISTRIBUTIONS = {
    "textworld": "textworld",
    "fast_downward": "fast-downward-textworld",
    "alfworld": "alfworld",
}


class MissingPackage(ImportError):
    """Raised when a package of the extra ``alfworld`` is not installed. The one-line message says what to install."""


def require() -> None:
    """Raises `MissingPackage` unless textworld, its planner and alfworld are installed. Imports none of them."""
    missing = [name for module, name in _DISTRIBUTIONS.items() if not _installed(module)]
    if missing:
        raise MissingPackage(
            f'ALFWorld needs {", ".join(missing)}: pip install "alignopsd-trl[alfworld]" '
            "(compiles a planner: needs a C and a C++ compiler, make and cmake)"
        )


def _installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # a folder that happens to have the name has no origin


def versions() -> dict[str, str]:
    """Returns the installed versions of the three packages, by distribution name."""
    require()
    return {name: importlib.metadata.version(name) for name in _DISTRIBUTIONS.values()}


@lru_cache(maxsize=1)
def logic_files() -> tuple[str, str]:
    """Returns the texts of ``alfred.pddl`` and ``alfred.twl2`` of the installed alfworld, without importing it."""
    require()
    found = importlib.util.find_spec("alfworld")
    assert found is not None and found.submodule_search_locations, "alfworld is no installed package"
    folder = Path(found.submodule_search_locations[0]) / "data"
    return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()


def logic_checksum() -> str:
    """Returns 16 hex digits of the sha256 over both logic files: only games with equal ones are comparable."""
    return hashlib.sha256("\0".join(logic_files()).encode()).hexdigest()[:16]


def official_folder() -> Path:
    """Returns the folder of the official data: ``$ALFWORLD_DATA/json_2.1.1``, by default
    ``~/.cache/alfworld/json_2.1.1``."""
    return Path(os.environ.get("ALFWORLD_DATA", "~/.cache/alfworld")).expanduser() / "json_2.1.1"

"""The files that come with the package beside its code: studies and launch files, by name."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped_files() -> dict[str, Path]:
    """Returns name to path, in an installed package or in the repository."""
    kinds = ("accelerate", "studies")
    return {path.stem: path for kind in kinds for path in sorted((_PACKAGE / "recipes" / kind).glob("*.*"))}


def shipped_or(path: str) -> str:
    """Returns the path of a shipped file for its name, with or without ``.yaml``, if there is no such path; else the
    path as it is."""
    return path if Path(path).exists() else str(shipped_files().get(path.removesuffix(".yaml"), path))

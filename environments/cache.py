"""The folder for files that environments prepare once, and how these are written: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def cache_folder(environment: str) -> Path:
    """Returns the folder ``environment`` in ``$ALIGNOPSD_CACHE``, by default in ``$XDG_CACHE_HOME/alignopsd`` or
    ``~/.cache/alignopsd``."""
    named = os.environ.get("ALIGNOPSD_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "alignopsd"
    return (Path(named) if named else default).expanduser() / environment


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing, even if several processes write the same one at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as draft:
        draft.write_bytes(data)
        draft.replace(path)


@contextmanager
def draft_folder(folder: Path) -> Generator[Path]:
    """Gives an empty folder, which gets its name when the block is done, so that no reader sees half of one. Of
    processes that build the same folder, the first to finish wins. A block that fails leaves nothing behind.

    Raises:
        OSError: if the folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _beside(folder) as draft:
        draft.mkdir()
        yield draft
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():
                raise


@contextmanager
def _beside(path: Path) -> Generator[Path]:
    """Gives a place of the same name on the same disk; what is left there is removed."""
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder) / path.name

"""The folder for files that environments prepare once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(environment: str) -> Path:
    """Returns the folder ``environment`` in ``$ALIGNOPSD_CACHE``, by default in ``$XDG_CACHE_HOME/alignopsd`` or
    ``~/.cache/alignopsd``."""
    named = os.environ.get("ALIGNOPSD_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "alignopsd"
    return (Path(named) if named else default).expanduser() / environment

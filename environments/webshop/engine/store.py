"""Named arrays in a folder: written once, checksummed, memory-mapped by every process that reads them.

A folder is built under another name and renamed (`draft_folder`). One whose checksums, sizes or key do not fit is moved
away and built anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from alignopsd_trl.environments.cache import draft_folder

FORMAT = 1
_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


class StoreError(ValueError):
    """Raised for a folder of arrays that is incomplete, damaged or of another version."""


class Store(dict[str, np.ndarray]):
    """Read-only arrays by name, with the builder's ``notes``."""

    def __init__(self, arrays: Mapping[str, np.ndarray], notes: Mapping[str, Any], folder: Path):
        super().__init__(arrays)
        self.notes, self.folder = MappingProxyType(dict(notes)), folder


class Writer:
    """Collects the arrays of a store that is being built."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notes: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}

    def add(self, name: str, array: np.ndarray) -> None:
        with open(self.folder / name, "wb") as file:
            file.write(np.ascontiguousarray(array).data if array.size else b"")
        self.declare(name, array.dtype, array.shape)

    def declare(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        """Registers an array whose bytes the builder wrote itself."""
        checksum = digest(self.folder / name)
        self._entries[name] = {"dtype": np.dtype(dtype).str, "shape": list(shape), "sha256": checksum}

    def finish(self, key: str) -> None:
        manifest = {"format": FORMAT, "key": key, "notes": self.notes, "arrays": self._entries}
        (self.folder / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def open_or_build(cache: Path, key: str, build: Callable[[Writer], None]) -> Store:
    """Opens the store called ``key`` under ``cache``, and builds it first if it is missing or damaged.

    Raises:
        OSError: if the cache folder cannot be written.
        Exception: any error of ``build``; nothing is left behind then.
    """
    folder = cache / key
    for _ in range(8):
        if folder.exists():
            try:
                return read(folder, key)
            except (StoreError, OSError) as error:
                _log.warning("%s is rebuilt: %s", folder, error)
                _discard(folder)
        with draft_folder(folder) as draft:
            writer = Writer(draft)
            build(writer)
            writer.finish(key)
    raise StoreError(f"{folder} is damaged again each time it is built; check the disk or set cache_dir to another one")


def read(folder: Path, key: str) -> Store:
    """Opens a store after checking its key, its sizes and every checksum.

    Raises:
        StoreError: if anything does not fit.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["key"] != key:
            raise StoreError("it was made by another version or from other data")
        arrays = {name: _map(folder / name, entry) for name, entry in manifest["arrays"].items()}
        return Store(arrays, manifest["notes"], folder)
    except (FileNotFoundError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"it is incomplete ({type(error).__name__}: {error})") from error


def _map(path: Path, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    wanted = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if path.stat().st_size != wanted:
        raise StoreError(f"{path.name} has {path.stat().st_size} bytes, not {wanted}")
    if digest(path) != entry["sha256"]:
        raise StoreError(f"{path.name} does not fit its checksum")
    # a plain view: the class memmap costs a microsecond at each look-up
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape)) if wanted else np.empty(shape, dtype)


def digest(path: Path) -> str:
    """Returns the sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _discard(folder: Path) -> None:
    away = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.discarded")
    try:
        folder.rename(away)
    except FileNotFoundError:
        return
    shutil.rmtree(away, ignore_errors=True)

"""Writes files that readers see whole or not at all, and JSON that any parser reads."""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

_SAMPLE = 2**20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes text in UTF-8 by `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> Path:
    """Replaces a file and returns its path. A reader sees the old or the new one, also if this process is killed."""
    try:
        with replacement(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        reason = f"{error.strerror or error}; make room or choose another folder"
        raise OSError(error.errno, reason, str(path)) from error
    return Path(path)


@contextmanager
def replacement(path: str | os.PathLike) -> Generator[Path]:
    """Yields the place of a new file, which nobody can foresee; at the end it replaces ``path`` in one step."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".partial", dir=path.parent) as folder:
        yield (partial := Path(folder) / path.name)
        partial.replace(path)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Writes strict JSON by `write_text`: a number that is not finite becomes ``null``."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def json_line(content: Mapping[str, Any]) -> str:
    """Returns strict JSON on one line."""
    return json.dumps(plain(content), allow_nan=False)


def plain(content: Any) -> Any:
    """Converts to JSON's types: enums by value, dataclasses by fields, NaN and infinity to `None`, the rest to text."""
    if isinstance(content, Enum):
        return plain(content.value)
    if is_dataclass(content) and not isinstance(content, type):
        return plain(vars(content))
    if isinstance(content, bool | int | str) or content is None:
        return content
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(name): plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple | set | frozenset):
        return [plain(value) for value in content]
    is_number = getattr(content, "ndim", None) == 0 and hasattr(content, "item")  # from NumPy or PyTorch
    return plain(content.item()) if is_number else str(content)


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the JSON object of a file, empty if the file is missing, damaged or holds something else."""
    try:
        found = json.loads(_content(Path(path)).decode())
    except (OSError, ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def whole_json(path: str | os.PathLike) -> dict[str, Any] | None:
    """Returns the JSON object of a file, `None` without a file. Raises `ValueError`, with file and line, if damaged."""
    path = Path(path)
    return _object(_content(path), path) if os.path.lexists(path) else None


def json_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Returns the objects of a JSON-lines file; empty without a file. Leaves out a last line without its end, which is
    still being written. Raises `ValueError` if it is damaged, with file and line."""
    path = Path(path)
    lines = _content(path).split(b"\n")[:-1] if os.path.lexists(path) else []
    return [_object(line, path, number) for number, line in enumerate(lines)]


def _content(path: Path) -> bytes:
    if not path.is_file():  # reading a pipe would wait for ever
        kind = "a folder" if path.is_dir() else "a broken link" if path.is_symlink() else "no plain file"
        raise ValueError(f"{path} is {kind}, where a file is read; move it away to go on without it")
    return path.read_bytes()


def _object(text: bytes, path: Path, before: int = 0) -> dict[str, Any]:
    """Returns the JSON object of a text that begins after ``before`` lines of a file."""
    line = 1
    try:
        if isinstance(found := json.loads(text.decode()), dict):
            return found
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
    except (ValueError, RecursionError) as error:  # a number of 5000 digits and lists in lists have no line
        line = getattr(error, "lineno", 1)
    raise ValueError(f"{path} is damaged at line {before + line}; move it away to go on without it")


@contextmanager
def full_disk_named(folder: str | os.PathLike, what: str) -> Generator[None]:
    """Raises `OSError` with the disk and the file for any error of a full disk: libraries that write name neither."""
    try:
        yield
    except Exception as error:
        if not _for_want_of_room(error):
            raise
        disk = shutil.disk_usage(folder)
        raise OSError(
            errno.ENOSPC,
            f"no room for {what}: {in_units(disk.free)} of {in_units(disk.total)} are free on this disk; "
            "make room, or save less (save_total_limit)",
            str(folder),
        ) from error


def fingerprint(file: Path) -> str:
    """Returns a file's size and a checksum, of samples where it is large."""
    size, found = file.stat().st_size, 0
    with file.open("rb") as content:
        for place in range(0, size, max(_SAMPLE, size // 64)):
            content.seek(place)
            found = zlib.crc32(content.read(_SAMPLE), found)
    return f"{size}-{found:08x}"


def in_units(size: float) -> str:
    """Formats a number of bytes with the unit that reads best."""
    power = next((power for power in (3, 2, 1) if size >= 1024**power), 0)
    return f"{size / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def _for_want_of_room(error: BaseException) -> bool:
    """Returns whether a full disk caused the error. safetensors gives its number in the text, torch gives none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_ROOM
    told = [f"os error {number}" for number in _NO_ROOM] + ["PytorchStreamWriter failed writing", "] . unexpected pos "]
    return any(words in str(error) for words in told)


@contextmanager
def replacing(folder: str | os.PathLike) -> Generator[Path]:
    """Yields a folder to write files into. At the end each file replaces its namesake in the target in one step; a
    target that does not exist yet appears whole or not at all."""
    folder = Path(folder)
    new = not folder.exists()
    home, name = (folder.parent, folder.name) if new else (folder, "files")
    home.mkdir(parents=True, exist_ok=True)
    _sweep_dead(home, name)
    owner = f"{socket.gethostname()}-{os.getpid()}"  # other machines may write to the same disk
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.{owner}.", suffix=".partial", dir=home))
    try:
        yield partial
        if new:
            partial.chmod(0o777 & ~_hidden())
            partial.rename(folder)
        else:
            for path in sorted(one for one in partial.rglob("*") if one.is_file()):
                place = folder / path.relative_to(partial)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep_dead(home: Path, name: str) -> None:
    """Removes the partial folders that killed processes of this machine left."""
    for left in home.glob(f".{glob.escape(name)}.{glob.escape(socket.gethostname())}-*.partial"):
        process = left.name.removesuffix(".partial").rpartition(".")[0].rpartition("-")[2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def readable_as_others(folder: Path) -> None:
    """Gives weights the file mode of other new files; safetensors makes them readable for their owner only."""
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o666 & ~_hidden())


def _hidden() -> int:
    """Returns the umask of this process."""
    hidden = os.umask(0o077)
    os.umask(hidden)
    return hidden


def sweep_partials(folder: str | os.PathLike) -> None:
    """Removes the partial files of killed writers, in the folder and one level below."""
    for pattern in (".*.partial", "*/.*.partial"):
        for left in Path(folder).glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def check_folder(name: str, argument: str = "output_dir") -> None:
    """Raises before the first episode if a file is in the place of the folder, or the folder is not writable."""
    path = Path(name)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise ValueError(f"{argument}={name!r}: {path} is a file; choose another folder")
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"{argument}={name!r}: nothing can be written in {path}; choose another folder") from error

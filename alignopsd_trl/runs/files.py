"""Files that readers see whole or not at all, and JSON that any parser reads."""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: str | os.PathLike, text: str) -> None:
    """`write_bytes` of text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> Path:
    """Replaces a file in one step: whoever looks sees the old content or the new, also if this process is killed.
    Returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        return partial.replace(path)
    except OSError as error:
        reason = f"{error.strerror or error}; make room or choose another folder"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, content: Any) -> None:
    """`write_text` of strict JSON: a number that is not finite becomes ``null``."""
    write_text(path, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


def json_line(content: Mapping[str, Any]) -> str:
    """Strict JSON on one line."""
    return json.dumps(plain(content), allow_nan=False)


def plain(content: Any) -> Any:
    """The content in JSON's own types: enums by value, dataclasses by their fields, numbers that are not finite as
    `None`, anything else as text."""
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
    is_number = getattr(content, "ndim", None) == 0 and hasattr(content, "item")  # of NumPy's or PyTorch's
    return plain(content.item()) if is_number else str(content)


def read_json(path: str | os.PathLike) -> Any:
    """The content of a JSON file, or `None` where there is none that can be read to its end."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def whole_json(path: str | os.PathLike) -> dict[str, Any] | None:
    """The JSON object of a file, or `None` where there is none.

    Raises:
        ValueError: if it is damaged, or holds something else; names the file and the line.
    """
    path = Path(path)
    return _object(_text(path), path) if path.is_file() else None


def json_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The objects of a file of one a line, none where there is no file. A last line without its end is still being
    written, and left out.

    Raises:
        ValueError: if it is damaged; names the file and the line.
    """
    path = Path(path)
    lines = _text(path).split("\n")[:-1] if path.is_file() else []
    return [_object(line, path, number) for number, line in enumerate(lines)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, error.object[: error.start].count(b"\n") + 1) from None


def _object(text: str, path: Path, before: int = 0) -> dict[str, Any]:
    """The JSON object of a text that begins after ``before`` lines of a file."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _damaged(path, before + getattr(error, "lineno", 1)) from None
    if not isinstance(found, dict):
        raise _damaged(path, before + 1)
    return found


def _damaged(path: Path, line: int) -> ValueError:
    return ValueError(f"{path} is damaged at line {line}; move it away to go on without it")


@contextmanager
def full_disk_named(folder: str | os.PathLike, what: str) -> Generator[None]:
    """An error for want of room names the disk and what was being written; libraries that write name neither.

    Raises:
        OSError: with the number of a full disk.
    """
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


def in_units(size: float) -> str:
    """A number of bytes with the unit that it reads best in."""
    power = next((power for power in (3, 2, 1) if size >= 1024**power), 0)
    return f"{size / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"


def _for_want_of_room(error: BaseException) -> bool:
    """safetensors keeps the number in its text, torch keeps only that it failed to write or to close a file."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_ROOM
    told = [f"os error {number}" for number in _NO_ROOM] + ["PytorchStreamWriter failed writing", "] . unexpected pos "]
    return any(words in str(error) for words in told)


@contextmanager
def replacing(folder: str | os.PathLike) -> Generator[Path]:
    """A folder to write files into. They take their places in another one, each in one step; a folder that is not
    there yet appears whole, or not at all."""
    folder = Path(folder)
    new = not folder.exists()
    home, name = (folder.parent, folder.name) if new else (folder, "files")
    home.mkdir(parents=True, exist_ok=True)
    _sweep_dead(home, name)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.{_owner(os.getpid())}.", suffix=".partial", dir=home))
    try:
        yield partial
        if new:
            partial.chmod(0o777 & ~_hidden())
            partial.rename(folder)
        else:
            _move_files(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _owner(process: int) -> str:
    """A process's name in those of its partial folders; other machines may write to the same disk."""
    return f"{socket.gethostname()}-{process}"


def _sweep_dead(home: Path, name: str) -> None:
    """Removes what killed processes of this machine left of a folder."""
    for left in home.glob(f".{glob.escape(name)}.{glob.escape(socket.gethostname())}-*.partial"):
        process = left.name.removesuffix(".partial").rpartition(".")[0].rpartition("-")[2]
        if process.isdigit() and not _alive(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _move_files(source: Path, folder: Path) -> None:
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        place = folder / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.replace(place)


def readable_as_others(folder: Path) -> None:
    """Gives weights the mode that every other new file has; safetensors writes them for their owner alone."""
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o666 & ~_hidden())


def _hidden() -> int:
    """The permissions that new files of this process lack."""
    hidden = os.umask(0o077)
    os.umask(hidden)
    return hidden


def sweep_partials(folder: str | os.PathLike) -> None:
    """Removes what killed writers left behind, in the folder and one level below."""
    for pattern in (".*.partial", "*/.*.partial"):
        for left in Path(folder).glob(pattern):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def check_folder(name: str, argument: str = "output_dir") -> None:
    """Raises before anything is played where a file stands in the way of a folder, or nothing can be written there."""
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

"""The state of a run's folder: its lock, what ``run.json`` notes of the last session, and the checkpoints that are
whole.

A session that ends, well or with an error, notes that it released the folder. A session without this note, in a folder
that no process uses, broke off: it was killed, or its code, such as the environment's, called `os._exit`. Such a
process leaves no message, and its exit status may be 0.

transformers writes a checkpoint's trainer state last, after every process has written its files; the trainer removes
the old one before it writes a checkpoint again. A list of the files with their checksums follows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.files import fingerprint, read_json, whole_json, write_json

LOCK_FILE, RUN_FILE, RESULTS_FILE = "run.lock", "run.json", "results.json"
ENDED, RELEASED = "ended", "released"  # notes of a session
_SESSION = {"processes": int, "started": str, "code": str, "versions": dict}


class RunFolderError(UserError):
    """Raised for an output folder that this run may not write to. The message gives the reason and the remedy."""


def read_run(path: Path) -> dict[str, Any] | None:
    """Returns ``run.json``, or `None` if it is missing or damaged."""
    run = read_json(path / RUN_FILE)
    whole = isinstance(run.get("configuration"), dict) and isinstance(run.get("id"), str)
    sessions = run.get("sessions") if whole else None
    known = isinstance(sessions, list) and all(_is_of(one, _SESSION) and "processes" in one for one in sessions)
    return run if known and sessions else None


def has_ended(path: Path, run: dict[str, Any] | None) -> bool:
    """Returns whether a folder's run, by its ``run.json`` (`read_run`), made all its updates, also without results."""
    return (path / RESULTS_FILE).is_file() or (run is not None and ENDED in run["sessions"][-1])


def broken_off(folder: str | os.PathLike, ours: bool = False) -> str:
    """Returns the message about a folder whose run broke off, or an empty text for any other folder. With ``ours`` this
    process holds the folder's lock, to resume the run."""
    path = Path(folder)
    run = read_run(path)
    if run is None or has_ended(path, run) or RELEASED in run["sessions"][-1] or (not ours and _in_use(path)):
        return ""
    return (
        f"the run in {path} broke off in the middle, without a word, after {run['sessions'][-1]['started']}: its "
        "process was killed, or code in it, such as the environment's, called os._exit"
    )


def lock(path: Path) -> BaseFileLock:
    """Locks a folder for this process. The lock is the operating system's: a killed run leaves none. Raises
    `RunFolderError` if another run holds it, or the folder is not writable."""
    held = FileLock(path / LOCK_FILE, blocking=False, thread_local=False)
    try:
        path.mkdir(parents=True, exist_ok=True)
        held.acquire()
    except Timeout:
        last = (read_run(path) or {"sessions": [{}]})["sessions"][-1]
        holder = f"(process {last.get('pid', 'unknown')} on {last.get('host', 'an unknown host')})"
        if (last.get("pid"), last.get("host")) == (os.getpid(), socket.gethostname()):
            holder = "of this process"
        raise RunFolderError(
            f"{path} is in use by another run {holder}; wait until it ends, or choose another output_dir"
        ) from None
    except OSError as error:
        raise RunFolderError(
            f"output_dir={str(path)!r} can't be written to ({error.strerror}); choose another output_dir"
        ) from error
    return held


def _in_use(path: Path) -> bool:
    """Returns whether a process holds the lock of a folder, or may hold it: this user may not be allowed to try."""
    if not (path / LOCK_FILE).is_file():
        return False
    try:
        with FileLock(path / LOCK_FILE, blocking=False):
            return False
    except OSError:
        return True


PREFIX = "checkpoint"
STATE_FILE, MARK, LIST_FILE = "run_state.json", "trainer_state.json", "files.json"


def is_whole(checkpoint: Path) -> bool:
    """Returns whether a checkpoint was written to its end: its trainer state can be read."""
    return isinstance(read_json(checkpoint / MARK).get("global_step"), int)


def list_files(checkpoint: Path) -> None:
    """Notes sizes and checksums of a checkpoint's files, from which `damage` tells whether they are as they were."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != LIST_FILE)
    write_json(checkpoint / LIST_FILE, {path.relative_to(checkpoint).as_posix(): fingerprint(path) for path in files})


def damage(checkpoint: Path, run: str | None = None) -> str | None:
    """Returns the first reason why a checkpoint can't be resumed; `None` if it can. One without a list of its files is
    judged by what transformers will read of them."""
    listed = read_json(checkpoint / LIST_FILE)
    if not listed and (checkpoint / LIST_FILE).exists():
        return f"{checkpoint / LIST_FILE} is damaged (it can't be read)"
    if not listed and (strange := _lacking(checkpoint) or _strange(checkpoint)):
        return f"{strange}, and no {LIST_FILE} lists it, as this run writes it last: the checkpoint is of elsewhere"
    for file, saved in ((checkpoint / name, saved) for name, saved in listed.items()):
        if not file.is_file():
            return f"{file} is damaged (it is gone)"
        if (found := fingerprint(file)) != saved:
            return f"{file} is damaged (size and checksum were {saved} and are {found})"
    other = load_state(checkpoint).get("run")
    return f"{checkpoint} is of another run ({other}; this one is {run})" if run and other not in (None, run) else None


_PARTS = (
    "optimizer* global_step*",
    "scheduler* global_step*",
    "rng_state*",
    "model* adapter_model* pytorch_model* global_step*",
)
_FORMS = {
    MARK: {"log_history": list},
    STATE_FILE: {"seconds": (int, float), "phases": dict, "failed": list, "records": dict},
}


def _lacking(checkpoint: Path) -> str:
    """Returns which file of a checkpoint is gone while others are there, or not as a run writes it; empty for none."""
    there = {kinds: any(any(checkpoint.glob(kind)) for kind in kinds.split()) for kinds in _PARTS}
    for kinds, found in there.items():
        if not found and any(there.values()):
            return f"{checkpoint / kinds.split()[0]} is gone"
    for name, kinds in _FORMS.items():
        with suppress(ValueError):
            if _is_of(whole_json(checkpoint / name) or {}, kinds):
                continue
        return f"{checkpoint / name} is not as a run writes it"
    other = read_json(checkpoint / MARK).get("global_step", update_of(checkpoint)) != update_of(checkpoint)
    return f"{checkpoint / MARK} is of another update" if other else ""


def _is_of(content: Any, kinds: Mapping[str, Any]) -> bool:
    """Returns whether a mapping's values are of these types, where it has them."""
    return isinstance(content, dict) and all(
        name not in content or isinstance(content[name], kind) for name, kind in kinds.items()
    )


def _strange(checkpoint: Path) -> str:
    """Returns which file of a checkpoint torch or safetensors will not read, from its header alone; empty for none."""
    from safetensors import SafetensorError, safe_open
    from torch.serialization import get_unsafe_globals_in_checkpoint
    from transformers.trainer_pt_utils import safe_globals

    kinds = "optimizer.pt scheduler.pt scaler.pt rng_state*.pth pytorch_model*.bin adapter_model.bin"
    for file in sorted(one for kind in kinds.split() for one in checkpoint.glob(kind)):
        try:
            with safe_globals():
                named = get_unsafe_globals_in_checkpoint(file)
        except (ValueError, RuntimeError):
            return f"{file} is no state that torch saved"
        if named:
            return f"{file} holds code ({named[0]})"
    for file in sorted(checkpoint.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError:
            return f"{file} is cut short or damaged"
    return ""


def checkpoints(output_dir: str | Path) -> list[Path]:
    """Returns the folders of a run's checkpoints, oldest first."""
    found = Path(output_dir).glob(f"{PREFIX}-*")
    return sorted((one for one in found if one.name.rpartition("-")[2].isdecimal()), key=update_of)


def whole_checkpoints(output_dir: str | Path) -> tuple[Path, ...]:
    """Returns the checkpoints of a run that are whole, oldest first."""
    return tuple(filter(is_whole, checkpoints(output_dir)))


def update_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def last_good(output_dir: str | Path) -> str:
    """Returns the name of the newest whole checkpoint for a message."""
    found = whole_checkpoints(output_dir)
    return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint yet"


def load_state(checkpoint: str | Path | None) -> dict[str, Any]:
    """Returns the run's own state that a checkpoint holds; empty without a checkpoint or without such a state."""
    return read_json(Path(checkpoint) / STATE_FILE) if checkpoint else {}

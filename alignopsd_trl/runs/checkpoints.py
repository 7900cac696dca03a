"""Finds the checkpoints of a run that are whole, and saves this package's own state in each.

transformers writes a checkpoint's trainer state last. Before that, the trainer waits for the files of every process.
It removes the old trainer state of a checkpoint before it writes that checkpoint again. A list of the files with their
checksums follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignopsd_trl.common.files import fingerprint, read_json, write_json

PREFIX = "checkpoint"
STATE_FILE, MARK, LIST_FILE = "run_state.json", "trainer_state.json", "files.json"


def is_whole(checkpoint: Path) -> bool:
    """Returns whether a checkpoint was written to its end: its trainer state can be read."""
    state = read_json(checkpoint / MARK)
    return isinstance(state, dict) and isinstance(state.get("global_step"), int)


def list_files(checkpoint: Path) -> None:
    """Notes sizes and checksums of a checkpoint's files, from which `damage` tells whether they are as they were."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != LIST_FILE)
    write_json(checkpoint / LIST_FILE, {path.relative_to(checkpoint).as_posix(): fingerprint(path) for path in files})


def damage(checkpoint: Path, run: str | None = None) -> str | None:
    """Returns the first reason why a checkpoint can't be resumed; `None` if it can, or if it has no
    list of its files.

    Args:
        run: id of the run that resumes.
    """
    listed = read_json(checkpoint / LIST_FILE)
    if not (listed and isinstance(listed, dict)) and (checkpoint / LIST_FILE).exists():
        return f"{checkpoint / LIST_FILE} is damaged (it can't be read)"
    for file, saved in ((checkpoint / name, saved) for name, saved in (listed or {}).items()):
        if not file.is_file():
            return f"{file} is damaged (it is gone)"
        if (found := fingerprint(file)) != saved:
            return f"{file} is damaged (size and checksum were {saved} and are {found})"
    other = load_state(checkpoint).get("run")
    return f"{checkpoint} is of another run ({other}; this one is {run})" if run and other not in (None, run) else None


def whole_checkpoints(output_dir: str | Path) -> tuple[Path, ...]:
    """Returns the checkpoints of a run that are whole, oldest first."""
    numbered = [path for path in Path(output_dir).glob(f"{PREFIX}-*") if is_numbered(path)]
    return tuple(sorted(filter(is_whole, numbered), key=update_of))


def is_numbered(checkpoint: Path) -> bool:
    return checkpoint.name.rpartition("-")[2].isdigit()


def update_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def last_good(output_dir: str | Path) -> str:
    """Returns the name of the newest whole checkpoint for a message."""
    found = whole_checkpoints(output_dir)
    return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint yet"


def save_state(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Saves the state that a run needs to resume exactly, beside the state that transformers saves."""
    write_json(checkpoint / STATE_FILE, state)


def load_state(checkpoint: str | Path | None) -> dict[str, Any]:
    """Returns the state that `save_state` wrote; empty without a checkpoint or without such a state."""
    state = read_json(Path(checkpoint) / STATE_FILE) if checkpoint else None
    return state if isinstance(state, dict) else {}

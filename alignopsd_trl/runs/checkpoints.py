"""Finds the checkpoints of a run that are whole, and saves this package's own state in each.

transformers writes a checkpoint's trainer state last. Before that, the trainer waits for the files of every process.
It removes the old trainer state of a checkpoint before it writes that checkpoint again. A list of the files with their
checksums follows.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from alignopsd_trl.runs.files import fingerprint, read_json, write_json

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
    """Returns the first reason why a checkpoint can't be resumed; `None` if it can.

    Its files are compared with their list. Without one, as of earlier releases, they are read: a safetensors file
    holds its own length, a torch file is a zip archive with its directory at the end, cut JSON can't be parsed.

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
            return f"{file} is damaged (saved as {saved}, size and checksum, it is {found} now)"
    other = load_state(checkpoint).get("run")
    if run and other and other != run:
        return f"{checkpoint} is of another run ({other}; this one is {run})"
    return None if listed else _unlisted_damage(checkpoint)


def _unlisted_damage(checkpoint: Path) -> str | None:
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.suffix in _CHECKS):
        try:
            _CHECKS[file.suffix](file)
        except (OSError, ValueError, SafetensorError) as error:
            return f"{file} is damaged ({error}; it has {file.stat().st_size} bytes)"
    missing = [name for name in STATES if not any(checkpoint.glob(name))]
    complete = len(missing) in (0, len(STATES)) or any(checkpoint.glob("global_step*"))
    return None if complete else f"{checkpoint} is damaged (it has no {missing[0]})"


STATES = ("optimizer*", "scheduler.pt", "rng_state*.pth")
"""Files that resume training, beside the weights. A checkpoint has all or none of them (``save_only_model``).
DeepSpeed has a folder of its own."""


def _check_archive(file: Path) -> None:
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no whole archive of torch")


def _check_weights(file: Path) -> None:
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (it is no mapping)
            if (values := weights.get_tensor(name)).is_floating_point() and not values.float().isfinite().all():
                raise ValueError(f"{name} is not finite")


_CHECKS: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys((".pt", ".pth", ".bin"), _check_archive),
    ".safetensors": _check_weights,
    ".json": lambda file: json.loads(file.read_text(encoding="utf-8")),
}


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

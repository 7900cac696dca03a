"""Finds the checkpoints of a run that are whole, and saves this package's own state in each.

transformers writes a checkpoint's trainer state last. Before that, the trainer waits for the files of every process.
It removes the old trainer state of a checkpoint before it writes that checkpoint again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from alignopsd_trl.runs.files import read_json, write_json

PREFIX = "checkpoint"
STATE_FILE, MARK = "run_state.json", "trainer_state.json"


def is_whole(checkpoint: Path) -> bool:
    """Returns whether a checkpoint was written to its end: its trainer state, the last file, can be read."""
    return read_json(checkpoint / MARK) is not None


def damage(checkpoint: Path) -> str | None:
    """Returns the damage of the first file that was cut or lost after it was written; `None` if all can be read.

    A safetensors file holds its own length. A torch file is a zip archive with its directory at the end. A JSON file
    that can't be parsed was cut.
    """
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
    """Raises for a torch file that is cut. A file that is no zip archive has another source and passes."""
    with file.open("rb") as content:
        begins = content.read(2)
    if not zipfile.is_zipfile(file) and (begins == b"PK" or len(begins) < 2):
        raise ValueError("it was cut")


def _check_weights(file: Path) -> None:
    with safe_open(file, framework="pt"):
        pass


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

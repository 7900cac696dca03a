"""Which checkpoints of a run are whole. transformers writes a checkpoint's trainer state last."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end: its trainer state, the last file, can be read."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def last_whole_checkpoint(output_dir: str | Path) -> Path:
    """The newest checkpoint of a run that a kill did not cut short.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if is_whole(path)]
    if not found:
        raise FileNotFoundError(f"no whole checkpoint in {output_dir}: start without resume_from_checkpoint")
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]))


def resume_path(wanted: str | bool | None, output_dir: str | Path) -> str | bool | None:
    """What to resume from: the newest whole checkpoint for ``True`` (or its text, as a command line gives it), the
    named one if it is whole, nothing for ``None`` or ``False``.

    Raises:
        FileNotFoundError: if there is no whole checkpoint.
        ValueError: if the named one was cut short.
    """
    if wanted in (True, "True", "true"):
        return str(last_whole_checkpoint(output_dir))
    if isinstance(wanted, str) and not is_whole(Path(wanted)):
        raise ValueError(
            f"resume_from_checkpoint={wanted!r} has no readable trainer_state.json (the run was stopped while writing "
            "it); use True for the last whole checkpoint"
        )
    return wanted

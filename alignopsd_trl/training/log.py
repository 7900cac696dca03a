"""Writes ``log.jsonl``: every number of every update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from alignopsd_trl.common.files import full_disk_named, json_line
from alignopsd_trl.runs.state import RUN_FILE


class LogFile(TrainerCallback):
    """Writes every logged number, one JSON object an update, to a file that a resumed run continues."""

    def __init__(self, path: Path):
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if not (self._path.parent / RUN_FILE).is_file():  # an evaluation before there is a run
            return
        line = json_line({"step": state.global_step, **logs})
        with full_disk_named(self._path.parent, self._path.name), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

"""Detects a run that broke off: it was killed, or its code, such as the environment's, called `os._exit`.

Such a process leaves no message, and its exit status may be 0. A session that ends, well or with an error, notes in
``run.json`` that it released the folder. A session without this note, in a folder that no process uses, broke off.
"""

from __future__ import annotations

import os
from pathlib import Path

from alignopsd_trl.runs.files import read_json
from alignopsd_trl.runs.lock import in_use

RUN_FILE, RESULTS_FILE = "run.json", "results.json"
RELEASED = "released"


def broken_off(folder: str | os.PathLike, ours: bool = False) -> str:
    """Returns the message about a folder whose run broke off, or an empty text for any other folder.

    Args:
        ours: this process holds the folder's lock, to resume the run.
    """
    path = Path(folder)
    run = read_json(path / RUN_FILE)
    sessions = run.get("sessions") if isinstance(run, dict) else None
    if not sessions or {"ended", RELEASED} & sessions[-1].keys() or (path / RESULTS_FILE).is_file():
        return ""
    if not ours and in_use(path):
        return ""
    return (
        f"the run in {path} broke off in the middle, without a word, after {sessions[-1]['started']}: its process was "
        "killed, or code in it, such as the environment's, called os._exit"
    )

"""A run that ended without a word: it was killed, or code in it, such as the environment's, called `os._exit`.

Nothing of the process is left to say so, and its exit status may be 0. But a session that ends, well or with an error,
notes in ``run.json`` that it gave the folder back: one without this note, in a folder that nobody uses, broke off.
"""

from __future__ import annotations

import os
from pathlib import Path

from alignopsd_trl.runs.files import read_json
from alignopsd_trl.runs.lock import in_use

RUN_FILE, RESULTS_FILE = "run.json", "results.json"
RELEASED = "released"


def broken_off(folder: str | os.PathLike, ours: bool = False) -> str:
    """What to say of a folder whose run broke off in the middle; nothing of another one.

    Args:
        ours: this process has locked the folder, to go on there.
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

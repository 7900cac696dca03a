"""Reads a finished or running run's folder by its list. A file that is cut, doubled, of another run or of another
schema is named with what to do, and so is one that is missing among others."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.common.files import json_lines, whole_json
from alignopsd_trl.records import read_records
from alignopsd_trl.runs.files import LOG_FILE, RECORDS, SCHEMAS, TRAJECTORIES
from alignopsd_trl.runs.state import RESULTS_FILE, RUN_FILE, has_ended, read_run

_MAPPINGS = {*"config recipe success score categories before after encoder skill_bank".split()}
_LISTS = {"history", "outcomes"}
_OF_A_ROUND = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
"""Settings that make the updates of a round: the product of the first two over the last."""


def run_folder(run: str | os.PathLike) -> Path:
    """Returns a run's folder. Raises `FileNotFoundError` if there is none."""
    if not Path(run).is_dir():
        raise FileNotFoundError(f"no run in {run}: it is no folder; give the output_dir of a run")
    return Path(run)


def content_of(folder: Path, name: str) -> dict[str, Any]:
    """Returns a JSON file of a run, empty without one. Raises `ValueError` if it, or ``run.json``, is damaged or of a
    newer schema, or if it is of another run than ``run.json``."""
    path, run = folder / name, None if name == RUN_FILE else content_of(folder, RUN_FILE).get("id")
    content, known = whole_json(path) or {}, SCHEMAS.get(name, 1)
    for label in ("schema", "schema_version"):
        if type(stated := content.get(label, known)) is not int or not 0 < stated <= known:
            raise ValueError(f"{path} is of {label} {stated!r}, and this version reads {known}; update alignopsd-trl")
    if name == RUN_FILE and content != {} and read_run(folder) is None:
        raise ValueError(f"{path} is damaged: it does not say which run this is; move it away to go on without it")
    if run and content.get("run", run) != run:
        raise ValueError(f"{path} is of another run ({content['run']}; this one is {run}); move it away")
    for label in content.keys() & (_MAPPINGS | _LISTS):
        found = content[label] or ([] if label in _LISTS else {})
        parts = found if label in _LISTS else [found]
        if not (isinstance(parts, list) and all(isinstance(one, dict) for one in parts)):
            raise ValueError(f"{path} is damaged: {label} is {found!r:.60}; move it away to go on without it")
    return content


def results_of(folder: Path) -> dict[str, Any]:
    """Returns a run's ``results.json``, or an evaluation's; raises as `content_of`."""
    return content_of(folder, RESULTS_FILE)


def log_of(folder: Path, history: Sequence[Mapping[str, Any]] = ()) -> Sequence[Mapping[str, Any]]:
    """Returns the lines of a run's log; without one the history, the log in ``results.json``. Raises `ValueError`, with
    file and line, if the log is damaged, doubled, out of order or not that of the history."""
    path = folder / LOG_FILE
    lines, last, remedy = json_lines(path), 0, "move it away to go on without it"
    there, ended = path.exists(), has_ended(folder, read_run(folder))
    if there and ended and path.read_bytes()[-1:] not in (b"", b"\n"):
        raise ValueError(f"{path} is cut at line {len(lines) + 1}, and its run has ended; {remedy}")
    for number, line in enumerate(lines, 1):
        if type(step := line.get("step")) is not int:
            raise ValueError(f"{path} is damaged at line {number}: it names no step; {remedy}")
        if step < last or line in lines[max(number - 3, 0) : number - 1]:
            raise ValueError(f"{path} is doubled or out of order at line {number} (step {step} after {last}); {remedy}")
        last = step
    if there and history and [one["step"] for one in lines] != [one.get("step") for one in history]:
        told = f"{path} has {len(lines)} lines up to step {last}, and {RESULTS_FILE} {len(history)} of its run"
        raise ValueError(f"{told}: it was cut, or is of another run; {remedy}")
    return lines or history


def records_of(folder: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Returns a run's records, and prints what is missing among them on standard error. Raises as `read_records`, and
    `FileNotFoundError` if there are none."""
    frame = read_records(folder / TRAJECTORIES, columns, content_of(folder, RUN_FILE).get("id"))
    if frame.empty:
        raise ValueError(f"{folder / TRAJECTORIES} holds files without a row; give the output_dir of a run that played")
    if told := missing_records(folder):
        print(f"note: {told}", file=sys.stderr, flush=True)
    return frame


def missing_records(folder: Path) -> str:
    """Returns a sentence about rounds and processes without a file among a run's trajectories; empty where none is
    missing. The last round of a run under way is left out."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for found in filter(None, (RECORDS.fullmatch(one.name) for one in (folder / TRAJECTORIES).iterdir())):
        place = int(found["step"]), int(found["round"] or 1)
        ranks.setdefault(place, set()).add(int(found["rank"] or 0))
    run = read_run(folder)
    if run is not None and not has_ended(folder, run):
        ranks.pop(max(ranks, default=(0, 0)), None)
    if not ranks:
        return ""
    steps, made = {step for step, _ in ranks}, results_of(folder).get("updates")
    updates = max(made if type(made) is int else 0, *steps, 1)
    sizes = [(run or {}).get("configuration", {}).get(name) for name in _OF_A_ROUND]
    apart = sizes[0] * sizes[1] // sizes[2] or 1 if all(type(one) is int and one > 0 for one in sizes) else updates
    processes = max(run["sessions"][-1]["processes"] if run else 0, *(max(there) + 1 for there in ranks.values()))
    lacking = [(step, there) for (step, _), there in sorted(ranks.items()) if len(there) < processes]
    due = range(0, updates, apart)
    gone = -(-updates // apart) - sum(step in due for step in steps)  # no len: a damaged number may be of any size
    if not gone + len(lacking):
        return ""
    told = f"step {next(step for step in due if step not in steps)}" if gone else f"step {lacking[0][0]}"
    told += "" if gone else f", process {next(one for one in count() if one not in lacking[0][1])}"
    more = f" (and {gone + len(lacking) - 1} more)" if gone + len(lacking) > 1 else ""
    return f"{folder / TRAJECTORIES} has no file of {told}{more}; bring it back, or this is without it"

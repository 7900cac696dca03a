"""Loads a run's turns and ``results.json``; the error for a missing column names the option that records it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.records import read_records
from alignopsd_trl.runs import reading
from alignopsd_trl.runs.files import TRAJECTORIES
from alignopsd_trl.runs.reading import records_of, run_folder

Records = str | os.PathLike | pd.DataFrame
"""Output folder of a run, a folder of parquet files, or a loaded frame."""

EPISODE = ["step", "task", "rollout"]
SPANS = ["credit_span", "credit_cut"]
BASE = [*EPISODE, "turn", "task_id", "category", "task_text", "reward", "won", "score", "action", "action_valid"]

_HINTS = {
    **dict.fromkeys(("teacher_thinking", "identity_gap", "rectified_gap", "weight"), "--method align_opsd"),
    **dict.fromkeys(("sources", "source_weights", "source_similarities"), "--method align_opsd with --rectify True"),
    **dict.fromkeys(("span", "cut", "divergence"), "--method align_opsd with --allocation span"),
}
"""The command-line options that record a column ``credit_NAME``."""


def turns_of(
    run: Records, needed: Sequence[str] = (), steps: Sequence[int] | None = None, welcome: Sequence[str] = ()
) -> pd.DataFrame:
    """Returns one row per turn, in the order (step, task, rollout, turn); episodes without turns are left out.

    Args:
        needed: required columns beside `BASE`.
        welcome: optional columns, returned where they were recorded.

    Raises:
        FileNotFoundError: if there are no records.
        ValueError: for a missing step, or a column that was not recorded; names the option that records it.
    """
    if isinstance(run, str | os.PathLike):
        columns, is_run = [*BASE, *needed, *welcome], (run_folder(run) / TRAJECTORIES).is_dir()
        frame = records_of(Path(run), columns) if is_run else read_records(run, columns)
    else:
        frame = run
    if frame[frame.turn.notna()].empty:
        raise ValueError(f"{name_of(run)} has no turns: no episode of it was played")
    if missing := [name for name in BASE if name not in frame]:
        raise ValueError(f"{name_of(run)} has no column {missing[0]!r}, which every run records; leave it out")
    if missing := [name for name in needed if name not in frame or frame[name].isna().all()]:
        hint = _HINTS.get(missing[0].removeprefix("credit_"))
        made = f"; a run with {hint} records it" if hint else ""
        raise ValueError(f"{name_of(run)} has nothing in column {missing[0]!r}, which this analysis needs{made}")
    if steps is not None:
        if absent := sorted(set(steps) - set(frame.step)):
            there = ", ".join(str(int(step)) for step in sorted(set(frame.step))[:20])
            raise ValueError(f"step {absent[0]} isn't in {name_of(run)}; its steps are {there}")
        frame = frame[frame.step.isin(list(steps))]
    return frame[frame.turn.notna()].astype({"turn": int, "step": int}).reset_index(drop=True)


def name_of(run: Records) -> str:
    return Path(run).resolve().name if isinstance(run, str | os.PathLike) else "the frame"


def results_of(run: Records) -> Mapping[str, Any]:
    """Returns the content of a run's ``results.json``; empty without the file."""
    return reading.results_of(Path(run)) if isinstance(run, str | os.PathLike) else {}


def setting(run: Records, name: str, default: Any) -> Any:
    """Returns a field of the run's configuration, or ``default`` if it is not recorded."""
    found = (results_of(run).get("config") or {}).get(name)
    return default if found is None else found


def used_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per pair that training used: the target's columns, with the source's number, weight and, where
    recorded, similarity in place of the lists. ``at`` and ``at_source`` are index labels of the frame, ``turn_source``
    is the source's turn number."""
    lists = ["credit_sources", "credit_source_weights", "credit_source_similarities"]
    lists = [name for name in lists if name in frame]
    known = frame[frame.credit_row.notna()].astype({"credit_row": int}).rename_axis("at").reset_index()
    pairs = known.explode(lists).dropna(subset=lists)
    pairs = pairs.astype({"credit_sources": int, **dict.fromkeys(lists[1:], float)})
    sources = known[["step", "task", "credit_row", "at", "turn"]].rename(columns={"credit_row": "credit_sources"})
    return pairs.merge(sources, on=["step", "task", "credit_sources"], how="left", suffixes=("", "_source"))

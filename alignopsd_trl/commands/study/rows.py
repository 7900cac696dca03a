"""The columns of a cell's row, and the rows of a study as one parquet file.

The rows hold everything that tables and figures need; lists are columns of their own, mappings are JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.commands.study.spec import METHOD_FIELDS, Cell, StudyError
from alignopsd_trl.records import damage_named
from alignopsd_trl.runs.provenance import code_checksum, machine, versions, weights_checksum

_EPISODES = {"success": "episodes/success", "score": "episodes/score"}
CURVES = {
    "curve": _EPISODES | {"reward": "reward", "turns": "episodes/turns", "entropy": "entropy"},
    "validation": {name: f"eval_{metric}" for name, metric in _EPISODES.items()},
}
"""Column ``<kind>_<name>`` -> metric of rounds, and of the evaluations in training that ``eval_strategy`` asks for."""

_OF_THE_CELL = (
    *("output_dir", "logging_dir", "run_name", "hub_model_id", "resume_from_checkpoint", "seed", "method"),
    "per_device_train_batch_size",  # follows from the number of processes; generation_batch_size is compared
    *("max_steps", "save_steps", "steps_per_generation", "gradient_accumulation_steps"),  # follow from a row's steps
)

ROWS = "rows.parquet"


def outcome_columns(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of an evaluation: averages and categories in percent, and the outcome of each task of the
    panel."""
    categories = result["categories"]
    as_it_is = ("panel", "episodes", "success_macro", "turns", "environment_errors")
    return {name: result[name] for name in as_it_is} | {
        "panel_checksum": result["checksum"],
        "with_skills": result["skills"],
        "success": result["success"]["mean"],
        "score": result["score"]["mean"],
        "invalid_actions": 100 * result["invalid_actions"],
        "category_names": list(categories),
        "category_success": [one["success"]["mean"] for one in categories.values()],
        "category_score": [one["score"]["mean"] for one in categories.values()],
        "category_episodes": [one["success"]["episodes"] for one in categories.values()],
        "task_won": [one["won"] for one in result["outcomes"]],
        "task_score": [one["score"] for one in result["outcomes"]],
    }


def training_columns(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the columns of a run's log: the curves of rounds and of evaluations, and wall seconds per rollout round
    and phase (means over the logged rounds, so that a resumed run counts no more than its rounds)."""
    columns: dict[str, Any] = {"updates": max(entry["step"] for entry in history)}
    for kind, curves in CURVES.items():
        if logged := [entry for entry in history if curves["success"] in entry]:
            columns[f"{kind}_update"] = [entry["step"] for entry in logged]
            columns |= {f"{kind}_{name}": [entry.get(key) for entry in logged] for name, key in curves.items()}
    means = pd.DataFrame(list(history)).filter(regex="^seconds/").mean().to_dict()
    return columns | means | {"seconds": sum(means.values())}


def provenance(job: Job) -> dict[str, Any]:
    """Returns the columns that make rows comparable: versions, config, weights, environment, machine."""
    config = {**vars(job.recipe), **vars(job.model), **job.args.to_dict()}
    return {
        "suite": job.suite.name,
        "suite_categories": list(job.suite.categories),
        "suite_facts": _json(dict(job.suite.description)),
        "weights": weights_checksum(job.policy),
        "protocol": _json({k: v for k, v in config.items() if k not in (*METHOD_FIELDS, *_OF_THE_CELL)}),
        "config": _json(config),
        "code": code_checksum(),
        "versions": _json(versions()),
        "machine": _json(machine()),
    }


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, default=str)


def task_order(folder: Path) -> str | None:
    """Returns the checksum of the played tasks, round by round, or `None` without trajectories
    (`save_trajectories`)."""
    rounds: dict[int, list[str]] = defaultdict(list)
    for file in sorted(folder.glob("step_*.parquet")):
        with damage_named(file):
            played = pd.read_parquet(file, columns=["step", "task_id"])
        for step, task in played.itertuples(index=False):
            if rounds[step][-1:] != [task]:
                rounds[step].append(task)
    text = json.dumps(sorted(rounds.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if rounds else None


def collect(cells: Iterable[Cell], errors: Mapping[Path, str]) -> list[dict[str, Any]]:
    """Returns the rows of all cells that ended: finished ones from their files, broken ones with their error."""
    found = []
    for cell in cells:
        if cell.row_file.is_file():
            (row,) = _read(cell.row_file, ["score", "with_skills"], 1)
            found.append({"status": "finished", **cell.columns, **row})
        elif cell.folder in errors:
            found.append({"status": "broken", **cell.columns, "error": errors[cell.folder]})
    return found


def read_rows(path: Path) -> pd.DataFrame:
    """Reads the rows of a study. Raises `StudyError` if there are none, or the file is damaged."""
    if not path.is_file():
        raise StudyError(f"no rows at {path}: run the study first")
    return pd.DataFrame(_read(path, "status environment method settings seed places columns".split()))


def _read(path: Path, needed: Sequence[str], count: int | None = None) -> list[dict[str, Any]]:
    with damage_named(path):
        rows = pq.read_table(path).to_pylist()
    if not rows or len(rows) != (count or len(rows)) or any(name not in rows[0] for name in needed):
        raise StudyError(f"{path} is not as a study wrote it; move it away, and the study makes it anew")
    return rows

"""Trajectories and credit traces as parquet: one row a turn, written at once and whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from alignopsd_trl.turns import Trajectory, Turn, TurnBatch

LONG_TEXT = 200  # characters


def turn_records(
    trajectories: Sequence[Trajectory],
    step: int,
    batch: TurnBatch | None = None,
    trace: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """One flat record per turn.

    Args:
        trajectories: all of them, those that failed too.
        step: training step of the rollout.
        batch, trace: the turns that got credit and its per-turn columns; they fill ``credit_<name>``.
    """
    columns = {name: _column(values) for name, values in (trace or {}).items()}
    place = {id(turn): row for row, turn in enumerate(batch.turns)} if batch is not None else {}
    records = []
    for trajectory in trajectories:
        for turn in trajectory.turns or [None]:  # an episode that ended before its first turn leaves a row as well
            row = place.get(id(turn))
            credit = {f"credit_{name}": None if row is None else values[row] for name, values in columns.items()}
            records.append(_trajectory_columns(trajectory, step) | _turn_columns(turn) | credit)
    return records


def _turn_columns(turn: Turn | None) -> dict[str, Any]:
    if turn is None:
        return {}
    return {
        "turn": turn.number,
        "prompt": turn.prompt_text,
        "response": turn.response_text,
        "thinking": turn.thought.thinking,
        "action": turn.action,
        "action_valid": turn.action_valid,
        "observation": turn.observation,
        "prompt_tokens": len(turn.prompt_ids),
        "response_tokens": len(turn.response_ids),
        "truncated": turn.truncated,
        "history_shortened": turn.history_shortened,
        "turn_reward": turn.reward,
        "info": json.dumps(_facts(turn.info), default=str),
    }


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """All but whole pages, of which the observation is a record already."""
    return {name: value for name, value in info.items() if not (isinstance(value, str) and len(value) > LONG_TEXT)}


def _trajectory_columns(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "task": trajectory.task,
        "task_id": trajectory.row.get("task_id"),
        "rollout": trajectory.rollout,
        "turn": None,
        "category": trajectory.category,
        "task_text": trajectory.task_text,
        "reward": trajectory.reward,
        "won": trajectory.won,
        "score": trajectory.score,
        "stop": trajectory.stop.value if trajectory.stop else None,
        "message": trajectory.message,
        "skill_ids": list(trajectory.skill_ids),
        "skill_text": trajectory.skill_text,
    }


def _column(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)


def write_records(path: str | os.PathLike, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes a parquet file in one step: readers see the whole file or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    names = list(dict.fromkeys(name for record in records for name in record))
    table = pa.table({name: [record.get(name) for record in records] for name in names})
    pq.write_table(table, partial)
    partial.replace(path)


def read_records(folder: str | os.PathLike) -> Any:
    """All parquet files of a folder as one `pandas.DataFrame`, in the order (step, task, rollout, turn).

    Raises:
        FileNotFoundError: if there are none.
    """
    import pandas as pd

    files = sorted(Path(folder).glob("*.parquet"))
    if not files:
        raise FileNotFoundError(f"no trajectories in {folder}; a run writes them with save_trajectories=True")
    frame = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return frame.sort_values(["step", "task", "rollout", "turn"], ignore_index=True)

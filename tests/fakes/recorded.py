"""Recorded runs of webshop_tiny, two steps of three tasks each: ``aligned``, and ``grpo`` with what GRPO records."""

import json
import shutil
from pathlib import Path

from alignopsd_trl.records import write_records

RUNS = Path(__file__).parents[1] / "data" / "runs"


def with_dialogues(folder: Path) -> Path:
    """Copies ``aligned`` with the dialogues of two panel tasks, which were lost before training and won after it."""
    shutil.copytree(RUNS / "aligned", folder)
    tasks = [one["task_id"] for one in json.loads((folder / "evaluation_after.json").read_text())["outcomes"][:2]]
    for when in ("before", "after"):
        rows = [
            {"step": 0, "task": task, "task_id": task, "rollout": "0000", "turn": turn, "action": f"{when} {turn}"}
            | {"prompt": None if turn else "Find it.", "observation": "seen", "action_valid": True, "category": "c"}
            | {"won": when == "after", "reward": 0.0, "score": 0.0, "stop": "done", "response": f"<a>{turn}</a>"}
            for task in tasks
            for turn in range(2)
        ]
        write_records(folder / f"evaluation_{when}.parquet", rows)
    return folder

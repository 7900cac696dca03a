"""Compares the protocols that the rows recorded, for a paragraph of the results."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

_ALL = {
    "weights": "initial weights",
    "panel_checksum": "panel",
    "code": "code",
    "versions": "versions",
    "machine": "machine",
}


def matched(rows: pd.DataFrame) -> list[str]:
    """Returns one sentence per environment and property: the value that all rows share, or the rows that differ."""
    found = []
    for environment, group in rows[rows["status"] == "finished"].groupby("environment", sort=False):
        facts = [_shared(group, name, title) for name, title in _ALL.items()]
        trained = group[group["updates"].notna()] if "updates" in group else group.head(0)
        if len(trained):
            facts += [_shared(trained, name, name) for name in ("updates", "trajectories")] + [_task_order(trained)]
        facts.append(_protocol(group))
        found += [f"{environment}: {fact}" for fact in facts]
    return found


def _shared(group: pd.DataFrame, name: str, title: str) -> str:
    counts = group[name].value_counts()
    if len(counts) == 1:
        return f"{title} equal in all {len(group)} rows: {_plain(counts.index[0])}"
    others = group[group[name] != counts.index[0]]
    return f"{title} DIFFER: {_plain(counts.index[0])}, but not in {_names(others)}"


def _task_order(trained: pd.DataFrame) -> str:
    if trained["task_order"].isna().any():
        return "task order not recorded in " + _names(trained[trained["task_order"].isna()])
    differing = [seed for seed, group in trained.groupby("seed") if group["task_order"].nunique() > 1]
    if differing:
        return f"task order DIFFERS between methods for seeds {differing}"
    return "task order equal between methods for every seed"


def _protocol(group: pd.DataFrame) -> str:
    configs = [json.loads(text) for text in group["protocol"]]
    names = sorted({name for config in configs for name in config})
    differing = [name for name in names if len({json.dumps(config.get(name)) for config in configs}) > 1]
    if differing:
        return f"settings beside the method's own DIFFER: {', '.join(differing)}"
    return f"all {len(names)} settings beside the method's own are equal"


def _plain(found: Any) -> str:
    return f"{found:g}" if isinstance(found, float) else str(found)


def _names(group: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(f"{label} seed {seed}" for label, seed in zip(group.label, group.seed, strict=True)))

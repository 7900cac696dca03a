"""Compares several runs with the first: differences of their curves, and paired results of their evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from alignopsd_trl.common.files import plain
from alignopsd_trl.common.statistics import bootstrap_mean
from alignopsd_trl.viewer.run import Curve, Run

_COMPARED = ["won", "score"]
_OUTCOME = ["task_id", "category", *_COMPARED]


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the content of the comparison page.

    Args:
        runs: two or more; the others are compared with the first.

    Raises:
        ValueError: for fewer than two runs.
    """
    if len(runs) < 2:
        raise ValueError(f"a comparison needs two runs or more, got {len(runs)}")
    first = runs[0]
    return {
        "names": _distinct([run.name for run in runs]),
        "facts": [run.facts for run in runs],
        "evaluation": [
            {
                when: {key: result.get(key) for key in ("success", "score", "checksum", "episodes")}
                for when, result in run.evaluation.items()
            }
            for run in runs
        ],
        "curves": [[asdict(curve) for curve in run.curves] for run in runs],
        "differences": [[asdict(curve) for curve in curve_differences(first, run)] for run in runs],
        "paired": [plain(paired(first.evaluation.get("after"), run.evaluation.get("after"))) for run in runs],
    }


def _distinct(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def curve_differences(first: Run, other: Run) -> list[Curve]:
    """Returns ``other`` minus ``first`` at the steps that both have, for each curve that both have."""
    theirs = {curve.name: curve for curve in other.curves}
    found = []
    for mine in first.curves:
        if mine.name not in theirs:
            continue
        base = dict(zip(mine.steps, mine.values, strict=True))
        both = zip(theirs[mine.name].steps, theirs[mine.name].values, strict=True)
        points = [(step, value - base[step]) for step, value in both if step in base]
        if points:
            found.append(Curve(mine.name, [step for step, _ in points], [value for _, value in points], [], []))
    return found


def paired(first: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns success and score of ``other`` minus ``first`` in points, paired by task, with 95 % bootstrap intervals
    over tasks; ``None`` where one has no evaluation or they share no task."""
    if not first or not other:
        return None
    mine, theirs = (
        pd.DataFrame(one.get("outcomes", ()), columns=_OUTCOME).set_index("task_id") for one in (first, other)
    )
    tasks = mine.index.intersection(theirs.index).sort_values()
    if tasks.empty:
        return None
    gained = (theirs[_COMPARED].astype(float) - mine[_COMPARED].astype(float)).loc[tasks]
    return _differences(gained) | {
        "newly_won": int((gained.won > 0).sum()),
        "newly_lost": int((gained.won < 0).sum()),
        "categories": {
            str(name): _differences(part) for name, part in gained.groupby(theirs.category.loc[tasks]) if name
        },
    }


def _differences(gained: pd.DataFrame) -> dict[str, Any]:
    return {"tasks": len(gained), "success": _interval(gained.won), "score": _interval(gained.score)}


def _interval(values: pd.Series) -> dict[str, float]:
    """Returns mean and interval; NaN if the environment does not know for some task whether it was won."""
    low, high = bootstrap_mean(values.to_numpy())
    return {"mean": 100 * float(values.mean(skipna=False)), "low": 100 * low, "high": 100 * high}

"""Reads a run's folder as plain values for a page: facts, curves, evaluations, and the turns of each step.

    trajectories/*.parquet ──► frame ──► step_content(step): tasks ► rollouts ► turns
    results.json, evaluation_*.json, log.jsonl ──► facts, curves, evaluation

Nothing here depends on the method: every ``credit_*`` column of a turn is passed on under its own name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.common.files import plain
from alignopsd_trl.common.progress import distinct
from alignopsd_trl.common.statistics import bootstrap_mean, share_of_tasks
from alignopsd_trl.records import read_file
from alignopsd_trl.runs.reading import content_of, log_of, records_of, results_of, run_folder

CREDIT = "credit_"
_THOUGHT = f"{CREDIT}teacher_thinking"
PANEL = -1  # the step whose tasks are those of the evaluations
TRAJECTORY = ("privileged", "reward", "won", "score", "stop", "message")
TURN = (
    *("turn", "prompt", "response", "thinking", "action", "action_valid", "observation", "prompt_tokens"),
    *("response_tokens", "truncated", "history_shortened", "turn_reward", "info", "token_texts"),
)
TASK = ("task_id", "category", "task_text", "skill_ids", "skill_text")
_CURVES = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "entropy": "entropy",
    "credit/weight_std": "spread of W",
    "rectification/identity_gap_mean": "identity gap",
    "rectification/rectified_gap_mean": "rectified gap",
    "correspondence/matched_share": "matched turns",
    "spans/length_mean": "turns a span",
}


@dataclass(frozen=True)
class Curve:
    """One quantity over rollout steps; ``name`` is its label with its unit. The lists are of equal length, ``low`` and
    ``high`` (95 % interval) empty where there is none."""

    name: str
    steps: list[int]
    values: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """The content of a run's page, read by `read_run`.

    Attributes:
        facts: short texts for the head of the page.
        evaluation: the results ``before`` and ``after`` training that exist.
        temperature: of the rollouts' sampling; `None` if unknown.
        steps: rollout steps with trajectories, rising, then `PANEL` if an evaluation's dialogues are there.
        frame: the records, one row a turn.
        panel: those of the evaluations, whose ``rollout`` is ``before`` or ``after``.
    """

    name: str
    facts: dict[str, str]
    curves: list[Curve]
    evaluation: dict[str, Any]
    temperature: float | None
    steps: list[int]
    frame: pd.DataFrame
    panel: pd.DataFrame

    def again(self, steps: Sequence[int]) -> dict[str, list[int]]:
        """Returns the tasks that more than one of these steps played, with the first and the last of them."""
        played = self.frame[self.frame.step.isin(steps)].groupby("task").step.agg(["min", "max"])
        return {task: [int(first), int(last)] for task, first, last in played.itertuples() if first < last}


def read_run(folder: str | os.PathLike) -> Run:
    """Reads a run's output folder; everything but ``trajectories/`` may be missing. Raises `FileNotFoundError` if it
    holds none, and `ValueError`, which names the file, if one is damaged, doubled or of another run."""
    folder = run_folder(folder)
    results = results_of(folder)
    history = log_of(folder, results.get("history") or ())
    frame = records_of(folder)
    if lacking := [name for name in ("won", "score", "task_id") if name not in frame]:
        raise ValueError(f"{folder} has no column {lacking[0]!r} in its trajectories, which every run records")
    evaluation = {when: content_of(folder, f"evaluation_{when}.json") for when in ("before", "after")}
    files = {when: folder / f"evaluation_{when}.parquet" for when in ("before", "after")}
    dialogues = [read_file(file).assign(rollout=when) for when, file in files.items() if os.path.lexists(file)]
    panel = pd.concat([pd.DataFrame(), *dialogues], ignore_index=True)
    return Run(
        name=folder.resolve().name,
        facts=_facts(results, frame),
        curves=[*episode_curves(frame), *log_curves(history)],
        evaluation={when: result for when, result in evaluation.items() if result},
        temperature=(results.get("config") or {}).get("temperature"),
        steps=[*sorted(int(step) for step in frame.step.unique()), *([] if panel.empty else [PANEL])],
        frame=frame,
        panel=panel,
    )


def _facts(results: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, str]:
    recipe, config = results.get("recipe") or {}, results.get("config") or {}
    facts = {
        "method": config.get("method"),
        "environment": recipe.get("environment"),
        "seed": results.get("seed"),
        "learning rate": config.get("learning_rate"),
        "episodes": len(frame.drop_duplicates(["step", "task", "rollout"])),
        "turns": int(frame.turn.notna().sum()),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def episode_curves(frame: pd.DataFrame) -> list[Curve]:
    """Returns score, length and, where known, success of the policy's own training episodes by step."""
    frame = frame[frame.privileged != True] if "privileged" in frame else frame  # noqa: E712 (missing in older files)
    episodes = frame.drop_duplicates(["step", "task", "rollout"])
    groups = episodes.groupby("step")
    count = groups.size()
    steps = count.index.tolist()
    turns = frame[frame.turn.notna()].groupby("step").size().reindex(count.index, fill_value=0) / count
    score = groups.score.mean().dropna()
    curves = [
        Curve("score, %", score.index.tolist(), (100 * score).tolist()),
        Curve("turns an episode", steps, turns.tolist()),
    ]
    if not episodes.won.notna().all():
        return curves
    won = groups.won.sum()
    tasks = episodes.astype({"won": float}).groupby(["step", "task"]).won.mean().groupby("step")
    parts = zip(won / count, tasks.agg(lambda one: (one**2).mean()), tasks.size(), count, strict=True)
    found = [share_of_tasks(*map(float, part)) for part in parts]
    ends = ([100 * getattr(one, name) for one in found] for name in ("value", "low", "high"))
    return [Curve("success, %", steps, *ends), *curves]


def log_curves(history: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """Returns the log's curves of `_CURVES`. A log line of step k is about the rollout of step k - 1."""
    curves = []
    lines = [line for line in history if isinstance(line.get("step"), int)]
    for key, label in _CURVES.items():
        known = ((line["step"] - 1, line.get(key)) for line in lines)
        found = [(step, value) for step, value in known if isinstance(value, int | float) and math.isfinite(value)]
        if found:
            curves.append(Curve(label, *map(list, zip(*found, strict=True))))
    return curves


def step_content(run: Run, step: int) -> dict[str, Any]:
    """Returns all tasks of one rollout step as nested plain values.

    The ``sources`` of a turn are given by rollout and turn of the same task, with similarity and weight. A turn is
    ``unasked`` where the privileged view did not think.
    """
    rows = _plain_rows(run.panel if step == PANEL else run.frame[run.frame.step == step])
    places = {(row["task"], row.get("credit_row")): row for row in rows}
    tasks: dict[str, dict[str, Any]] = {}
    for row in rows:
        task = tasks.setdefault(row["task"], {"task": row["task"], **_part(row, TASK), "rollouts": {}})
        fresh = {"rollout": row["rollout"], **_part(row, TRAJECTORY), "turns": []}
        rollout = task["rollouts"].setdefault(row["rollout"], fresh)
        if row["turn"] is not None:
            rollout["turns"].append(_turn(row, places))
    return {"step": step, "tasks": [{**task, "rollouts": list(task["rollouts"].values())} for task in tasks.values()]}


def _turn(row: Mapping[str, Any], places: Mapping[tuple[str, Any], Mapping[str, Any]]) -> dict[str, Any]:
    credit = {
        name.removeprefix(CREDIT): value for name, value in row.items() if name.startswith(CREDIT) and value is not None
    }
    keys = credit.pop("sources", None) or []
    similarities, weights = credit.pop("source_similarities", []), credit.pop("source_weights", [])
    if not len(keys) == len(similarities) == len(weights) or any((row["task"], key) not in places for key in keys):
        told = f"step {row['step']}, rollout {row['rollout']!r}, turn {row['turn']}"
        raise ValueError(
            f"the record of {told} has sources that are not among the records; view a run as it was written"
        )
    found = [places[row["task"], key] for key in keys]
    sources = [
        {"rollout": one["rollout"], "turn": int(one["turn"]), "similarity": similarity, "weight": weight}
        for one, similarity, weight in zip(found, similarities, weights, strict=True)
    ]
    unasked = {"unasked": True} if row.get("credit_row") is not None and row.get(_THOUGHT, "") is None else {}
    return {**_part(row, TURN), "turn": int(row["turn"]), "credit": credit, "sources": sources} | unasked


def _part(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns the rows with lists for arrays, and `None` for missing and non-finite numbers. Token columns have three
    decimals, since their many values were float16."""
    for name in (name for name in frame if name.startswith(f"{CREDIT}token_")):
        short = [np.asarray(one, float).round(3) if np.ndim(one) else one for one in frame[name]]
        frame = frame.assign(**{name: pd.Series(short, frame.index, object)})
    text: Any = frame.to_json(orient="records", double_precision=6)
    return json.loads(text)


_COMPARED = ["won", "score"]
_OUTCOME = ["task_id", "category", *_COMPARED]
_SHOWN = ("success", "score", "checksum", "episodes")


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the content of the comparison page."""
    if len(runs) < 2:
        raise ValueError(f"a comparison needs two runs or more, got {len(runs)}")
    first = runs[0]
    return {
        "names": distinct(run.name for run in runs),
        "facts": [run.facts for run in runs],
        "evaluation": [{when: _part(result, _SHOWN) for when, result in run.evaluation.items()} for run in runs],
        "curves": [run.curves for run in runs],
        "differences": [curve_differences(first, run) for run in runs],
        "paired": [plain(paired(first.evaluation.get("after"), run.evaluation.get("after"))) for run in runs],
    }


def curve_differences(first: Run, other: Run) -> list[Curve]:
    """Returns ``other`` minus ``first`` at the steps that both have, for each curve that both have."""
    mine, theirs = ({one.name: pd.Series(one.values, one.steps) for one in run.curves} for run in (first, other))
    apart = {name: (theirs[name] - values).dropna() for name, values in mine.items() if name in theirs}
    return [Curve(name, gap.index.tolist(), gap.tolist()) for name, gap in apart.items() if len(gap)]


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

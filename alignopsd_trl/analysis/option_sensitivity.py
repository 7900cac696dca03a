"""Measures the effect of settings on success, over runs or rows of a study that differ in some settings."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.analysis.drawing import BLUE, curve, label, panels
from alignopsd_trl.analysis.finding import Finding
from alignopsd_trl.analysis.loading import name_of, results_of
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions

TITLES = {
    "max_sources": "retrieval top-K",
    "similarity_threshold": r"threshold $\gamma_H$",
    "credit_temperature": r"credit temperature $T$",
}


def sensitivity(runs: Sequence[str | os.PathLike] | str | os.PathLike, options: Sequence[str] = ()) -> Finding:
    """Draws success after training against each setting in which the runs differ, and success over training per value.

    The subplot of an option shows the runs whose other options have their most frequent values.

    Args:
        runs: output folders of finished runs, or the ``rows.parquet`` of a study.
        options (*optional*): fields of the method's options; all that differ by default.

    Raises:
        ValueError: if a run isn't finished, or no option differs.
    """
    runs = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    rows = [row for run in runs for row in (_study(run) if Path(run).suffix == ".parquet" else [_run(run)])]
    names = [one.name for one in fields(AlignOPSDOptions)]
    table = pd.DataFrame([row for row in rows if row["method"] == "align_opsd"])
    differ = [name for name in names if name in table and table[name].astype(str).nunique() > 1]
    varied = list(options) or differ
    if table.empty or not varied:
        raise ValueError("sensitivity needs runs of align_opsd that differ in one of its options, such as max_sources")
    if unknown := [name for name in varied if name not in table]:
        raise ValueError(f"option {unknown[0]!r} is none of the method's; some are: {', '.join(names[:8])}")
    slices = {name: _slice(table, name, differ) for name in varied}
    points, curves = (
        pd.concat(each, ignore_index=True) for each in zip(*(_tables(*one) for one in slices.items()), strict=True)
    )
    numbers = {
        name: {f"{row.environment}, {row.value}": row.success for row in points[points.option == name].itertuples()}
        for name in varied
    }
    return Finding("sensitivity", numbers, {"points": points, "curves": curves}, _drawn(points, slices))


def _run(run: str | os.PathLike) -> dict[str, Any]:
    results = results_of(run)
    if "after" not in results or "config" not in results:
        raise ValueError(f"{name_of(run)} has no results.json with an evaluation after training; let it finish")
    logged = [line for line in results["history"] if "episodes/success" in line]
    environment = (results.get("recipe") or {}).get("environment")
    updates, curve = [line["step"] for line in logged], [line["episodes/success"] for line in logged]
    success = results["after"]["success"]["mean"]
    return results["config"] | _facts(environment, results.get("seed"), success, updates, curve)


def _study(path: str | os.PathLike) -> list[dict[str, Any]]:
    rows = pd.read_parquet(path)
    return [
        {**json.loads(row.config), "method": row.method}
        | _facts(row.environment, row.seed, row.success, list(row.curve_update), row.curve_success)
        for row in rows[(rows.status == "finished") & rows.curve_update.notna()].itertuples()
    ]


def _facts(environment: Any, seed: Any, success: float, updates: Sequence, curve: Sequence[float]) -> dict[str, Any]:
    percent = [100 * value for value in curve]
    return {"environment": environment, "seed": seed, "success": success, "updates": updates, "curve": percent}


def _slice(table: pd.DataFrame, option: str, varied: Sequence[str]) -> pd.DataFrame:
    """Returns the runs whose other varied options have their most frequent value."""
    for other in varied:
        if other != option:
            table = table[table[other].astype(str) == table[other].astype(str).mode().iloc[0]]
    return table


def _tables(option: str, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns an option's tables: success by value, and the training curves of each value."""
    groups = table.rename(columns={option: "value"}).groupby(["environment", "value"])
    points = groups.success.agg(success="mean", lowest="min", highest="max", seeds="size").reset_index()
    curves = table[["environment", option, "seed", "updates", "curve"]].explode(["updates", "curve"])
    curves.columns = ["environment", "value", "seed", "update", "success"]
    return points.assign(option=option, value=points["value"].astype(str)), curves.assign(option=option)


def _drawn(points: pd.DataFrame, slices: dict[str, pd.DataFrame]) -> Any:
    figure, axes = panels(2 * len(slices), columns=len(slices))
    for top, below, (option, table) in zip(axes[: len(slices)], axes[len(slices) :], slices.items(), strict=True):
        part = points[points.option == option]
        for number, (environment, one) in enumerate(part.groupby("environment")):
            reach = [one.success - one.lowest, one.highest - one.success]
            style: dict[str, Any] = {"ls": "-" if pd.api.types.is_numeric_dtype(table[option]) else "none"}
            style |= {"marker": "os^Dv"[number % 5], "color": BLUE if number == 0 else None}
            top.errorbar(one.value, one.success, reach, capsize=3, label=environment, **style)
        title = TITLES.get(option, option.replace("_", " "))
        label(top, f"{title}: bars from lowest to highest seed", title, "success after training (%)", legend=True)
        for number, (value, group) in enumerate(table.groupby(option)):
            rows = group[["updates", "curve"]].explode(["updates", "curve"]).astype(float)
            means = rows.groupby("updates").curve.mean()
            curve(below, means.index, means, number, str(value))
        label(below, "success while training, mean of seeds", "update", "success of rollouts (%)", legend=True)
    return figure

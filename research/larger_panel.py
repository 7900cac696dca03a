"""The trained policies of a study on other test tasks than the study's own, with differences paired by seed.

    python -m alignopsd_trl.commands.study recipes/studies/trips.yaml
    python -m research.larger_panel outputs/studies/trips --environment "WebShop trips, 3e-4" --limit 384 \
        --output trips_384.json

Each policy plays the first ``--limit`` tasks of the panel ``--repeats`` times, with other seeds of sampling; what has
been played is kept beside its cell and not played again. The table compares every line with GRPO.
`recipes/studies/distribution_fresh.yaml` has commands with ``--environment_options``, for tasks of another world.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.commands.cli import main as alignopsd
from alignopsd_trl.common.statistics import mean, paired

SHARED = ("checksum", "temperature")
Outcomes = dict[str, dict[int, dict[str, Any]]]


def rows_of(study: Path, environment: str | None) -> pd.DataFrame:
    """The rows of one of its environments that were trained, by seed, GRPO first."""
    rows = pd.read_parquet(study / "rows.parquet")
    rows = rows[rows["updates"].notna()].assign(other=rows["method"] != "grpo")
    rows = rows.sort_values(["seed", "other"], kind="stable")
    labels = list(rows["environment"].unique())
    if environment is None and len(labels) == 1:
        return rows
    if environment not in labels:
        known = ", ".join(map(repr, labels))
        raise SystemExit(f"--environment {environment} is none of this study's; use one of {known}")
    return rows[rows["environment"] == environment]


def play(rows: pd.DataFrame, given: argparse.Namespace) -> Outcomes:
    """Evaluations by label and seed."""
    found: Outcomes = defaultdict(dict)
    limit, temperature, options = given.limit, given.temperature, given.environment_options
    name = f"evaluation_{limit}_{temperature:g}" + (f"_{zlib.crc32(options.encode()):08x}" if options else "")
    for row in rows.to_dict("records"):
        cell, task = Path(row["folder"]), ["--environment", row["suite"], "--panel", given.panel, "--limit", str(limit)]
        task += ["--environment_options", options] if options else []
        played = []
        for seed in range(given.repeats):
            target = cell / (name + (f"_seed{seed}" if seed else ""))
            if not (target / "results.json").is_file():
                sampling = ["--temperature", str(temperature), "--seed", str(seed)]
                alignopsd(["evaluate", "--model", str(cell / "run"), *task, *sampling, "--output", str(target)])
            played.append(json.loads((target / "results.json").read_text(encoding="utf-8")))
        found[row["label"]][int(row["seed"])] = pooled(played)
    return dict(found)


def pooled(played: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a policy's evaluations: what they share, and the mean of what they measured."""
    measured = [
        {"success": one["success"]["mean"], "score": one["score"]["mean"], "turns": one["turns"]} for one in played
    ]
    means = {name: sum(one[name] for one in measured) / len(played) for name in measured[0]}
    return {name: played[0][name] for name in SHARED} | {"repeats": len(played)} | means


def table(found: Outcomes) -> str:
    first = next(iter(found))
    lines = ["| | success by seed | success | minus " + first + " |", "|---|---|---|---|"]
    reference = _success(found[first])
    for label, by_seed in found.items():
        values = _success(by_seed)
        each = ", ".join(f"{value:.1f}" for value in values.values())
        difference = "" if label == first else str(paired(values, reference))
        lines.append(f"| {label} | {each} | {mean(list(values.values()))} | {difference} |")
    return "\n".join(lines)


def _success(by_seed: dict[int, dict[str, Any]]) -> dict[int, float]:
    return {seed: result["success"] for seed, result in by_seed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="output folder of a study")
    parser.add_argument("--environment", help="label of one of its environments, if it has several")
    parser.add_argument("--panel", default="test", help="name of a panel of its environments")
    parser.add_argument("--environment_options", help="JSON, for tasks of another kind or seed")
    parser.add_argument("--limit", type=int, required=True, help="how many tasks of it")
    parser.add_argument(
        "--temperature", type=float, default=0.4, help="of sampling; the paper's evaluations by default"
    )
    parser.add_argument("--repeats", type=int, default=1, help="how often each of them is played")
    parser.add_argument("--output", type=Path, required=True, help="JSON with every run's figures")
    arguments = parser.parse_args()
    rows = rows_of(arguments.study, arguments.environment)
    found = play(rows, arguments)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()

"""How a study's lines learn early and late: success of the rollouts in windows of updates, minus GRPO's by seed.

    python -m research.early_and_late outputs/studies/hops/rows.parquet --windows 2-7 8-12 --output windows.json

Several files of rows are pooled: a run of equal label, settings and seed counts once.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from alignopsd_trl.common.statistics import mean, paired

Curves = dict[str, dict[int, dict[int, float]]]


def curves(files: Sequence[Path], environment: str | None) -> Curves:
    """Success in percent by label, seed and update."""
    found: Curves = defaultdict(dict)
    for file in files:
        rows = pd.read_parquet(file)
        rows = rows[rows["updates"].notna()]
        for row in rows.to_dict("records"):
            if environment in (None, row["environment"]):
                updates = zip(row["curve_update"].tolist(), (100 * row["curve_success"]).tolist(), strict=True)
                found[row["label"]][int(row["seed"])] = dict(updates)
    return dict(found)


def windows_of(found: Curves, windows: Sequence[range]) -> dict[str, list[dict[str, Any]]]:
    """For each label and window the mean over seeds, and the difference to GRPO with its interval."""
    result = {}
    for label, by_seed in found.items():
        result[label] = []
        for window in windows:
            own, base = (_window(one, window) for one in (by_seed, found["GRPO"]))
            difference = paired(own, base)
            result[label].append(
                {
                    "updates": [window[0], window[-1]],
                    "seeds": len(own),
                    "success": mean(list(own.values())).value,
                    "minus_grpo": difference.value,
                    "half": difference.half,
                }
            )
    return result


def _window(by_seed: dict[int, dict[int, float]], window: range) -> dict[int, float]:
    return {seed: sum(curve[update] for update in window) / len(window) for seed, curve in by_seed.items()}


def _range(text: str) -> range:
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+", type=Path, help="rows.parquet of studies")
    parser.add_argument("--environment", help="label of one of their environments; all by default")
    parser.add_argument("--windows", nargs="+", type=_range, required=True, metavar="FIRST-LAST", help="updates from 1")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args()
    learning = curves(arguments.rows, arguments.environment)
    if "GRPO" not in learning:
        raise SystemExit(f"no trained row of GRPO in {', '.join(map(str, arguments.rows))}, to compare with")
    fewest = min(max(curve) for by_seed in learning.values() for curve in by_seed.values())
    if fewest < max(window[-1] for window in arguments.windows):
        raise SystemExit(f"--windows goes beyond the {fewest} updates that every run has")
    found = windows_of(learning, arguments.windows)
    spans = [f"updates {one[0]} to {one[-1]}, minus GRPO |" for one in arguments.windows]
    print("| | seeds |", *spans)
    print("|---|---|" + "---|" * len(spans))
    for label, parts in found.items():
        cells = " | ".join(f"{one['success']:.1f}, {one['minus_grpo']:+.1f} ± {one['half']:.1f}" for one in parts)
        print(f"| {label} | {parts[0]['seeds']} | {cells} |")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What the teacher still says as training goes on: token gaps by the kind of word, early and late.

    python -m research.gaps_while_training outputs/align_opsd_0 outputs/align_opsd_1 --windows 1-4 5-8 9-12 \
        --output gaps.json

Reads the trajectories of runs of AlignOPSD (``credit_token_rectified_gaps``). A plan is the word behind "; so" of the
shipped policies' thinking, a name is a word with a capital; rms is the root of the mean squared gap, and the share is a
kind's part of the sum of squares.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alignopsd_trl.records import read_records

COLUMNS = ("step", "token_texts", "credit_advantage", "credit_token_rectified_gaps")
KINDS = ("plan", "name", "other")


def kinds(words: Sequence[str]) -> list[str]:
    """The kind of each token of a response."""
    before = ["", *(word.strip() for word in words)]
    return [
        "plan" if last == "; so" else "name" if word.strip()[:1].isupper() else "other"
        for word, last in zip(words, before, strict=False)
    ]


def gaps(runs: Sequence[Path]) -> pd.DataFrame:
    """A row a token of the turns with an advantage: update from 1, side, kind and gap."""
    rows: dict[str, list[Any]] = defaultdict(list)
    for run in runs:
        turns = read_records(run / "trajectories", COLUMNS)
        for turn in turns[turns["credit_advantage"] != 0].itertuples():
            count = len(turn.token_texts)
            rows["update"] += [turn.step + 1] * count
            rows["side"] += ["praised" if turn.credit_advantage > 0 else "blamed"] * count
            rows["kind"] += kinds(turn.token_texts)
            rows["gap"] += list(turn.credit_token_rectified_gaps)
    return pd.DataFrame(rows)


def table(tokens: pd.DataFrame, windows: Sequence[range]) -> list[dict[str, Any]]:
    found = []
    for window in windows:
        for side in ("praised", "blamed"):
            part = tokens[tokens["update"].isin(window) & (tokens["side"] == side)]
            total = float((part["gap"] ** 2).sum())
            for kind in KINDS:
                gap = part.loc[part["kind"] == kind, "gap"].to_numpy(dtype=float)
                squares = float((gap**2).sum())
                found.append(
                    {
                        "updates": [window[0], window[-1]],
                        "side": side,
                        "kind": kind,
                        "tokens": len(gap),
                        "mean": float(gap.mean()),
                        "rms": float(np.sqrt(squares / len(gap))),
                        "share": squares / total,
                    }
                )
    return found


def _range(text: str) -> range:
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of runs of AlignOPSD")
    parser.add_argument("--windows", nargs="+", type=_range, required=True, metavar="FIRST-LAST", help="updates from 1")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args()
    found = table(gaps(arguments.runs), arguments.windows)
    print("| updates | side | kind | tokens | mean gap | rms | share of squares |\n|---|---|---|---|---|---|---|")
    for row in found:
        updates = f"{row['updates'][0]} to {row['updates'][1]}"
        values = f"{row['mean']:+.3f} | {row['rms']:.3f} | {row['share']:.2f}"
        print(f"| {updates} | {row['side']} | {row['kind']} | {row['tokens']} | {values} |")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

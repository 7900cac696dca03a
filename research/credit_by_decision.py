"""Where AlignOPSD's credit went: mean weight of turns by what their thinking begins with, by the outcome's sign.

    python -m research.credit_by_decision outputs/webshop_tiny [more runs] [--words 2] [--least 40] [--keep FILE.csv]

Reads the trajectories that runs leave. A turn's weight multiplies its episode's advantage: above 1 in a won episode is
more of the praise, above 1 in a failed one more of the blame. Turns of episodes without advantage are left out. The
shipped policies think in a few fixed phrases, which is what makes the grouping worth reading.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from alignopsd_trl.records import read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of AlignOPSD runs")
    parser.add_argument("--words", type=int, default=2, help="of the thinking that make a group")
    parser.add_argument("--least", type=int, default=40, help="turns of a group that is shown")
    parser.add_argument("--keep", type=Path, help="write the table as CSV")
    arguments = parser.parse_args()
    table = by_decision(
        [read_records(run / "trajectories") for run in arguments.runs], arguments.words, arguments.least
    )
    print(table.round(3).to_string())
    if arguments.keep:
        table.round(4).to_csv(arguments.keep)


def by_decision(frames: list[pd.DataFrame], words: int, least: int) -> pd.DataFrame:
    """Mean, deviation and number of `credit_weight` by (outcome, first words of the thinking)."""
    turns = pd.concat(frames, ignore_index=True)
    turns = turns[turns.credit_advantage.fillna(0) != 0]
    outcome = (turns.credit_advantage > 0).map({True: "above its group", False: "below its group"}).rename("episode")
    thinking = turns.thinking.str.split().str[:words].str.join(" ").rename("thinking")
    table = turns.groupby([outcome, thinking]).credit_weight.agg(["mean", "std", "count"])
    return table[table["count"] >= least]


if __name__ == "__main__":
    main()

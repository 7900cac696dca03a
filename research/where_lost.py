"""Where credit is lost in `webshop_trips`: the correlation with A_MC, taken apart by what the thinking decides.

python -m research.where_lost outputs/fidelity_0 outputs/fidelity_1 --variants align_opsd rlsd --output where_lost.json

r is a sum over turns of credit times A_MC, each less its mean over the trajectory, over one root of sums of squares; so
the turns of a decision have a part of it, and the parts of one side (praised or blamed) add up to its r.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alignopsd_trl.measure.metrics import Turns, task_mean
from alignopsd_trl.measure.report import pooled
from alignopsd_trl.measure.table import credit_of, turns_of
from alignopsd_trl.runs.files import plain
from research.pools import short

CAREFUL_SEARCHES = ("search all its words", "search another")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="what --output of alignopsd measure was")
    parser.add_argument("--variants", nargs="+", default=["align_opsd", "rlsd"])
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    measured = pooled(arguments.folders)
    turns, credit = turns_of(measured), credit_of(measured)
    names = np.array([decision(one) for one in measured.thinking])
    found = plain({side: table(turns, names, credit, chosen, arguments.variants) for side, chosen in sides(turns)})
    for side, rows in found.items():
        print(f"\n{side}\n| decision | turns | A_MC | share of A_MC^2 |", *(f"{one} |" for one in arguments.variants))
        for row in rows:
            parts = " | ".join(f"{row['weight'][one]:.2f}, {row['part_of_r'][one]:+.2f}" for one in arguments.variants)
            print(f"| {row['decision']} | {row['turns']} | {short(row['a_mc'])} | {row['share']:.2f} | {parts} |")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def decision(thinking: str) -> str:
    """What a thought of the shipped policy ends in, without the things that it is about."""
    said = thinking.split(";")[-1].strip().removeprefix("so ")
    if said.startswith("choose "):
        return "choose an option"
    if said.startswith("search ") and said not in CAREFUL_SEARCHES:
        return "search one word"
    return "go back" if said.startswith("back") else said or "nothing said"


def sides(turns: Turns) -> list[tuple[str, np.ndarray]]:
    return [("praised", turns.outcome > 0), ("blamed", turns.outcome < 0)]


def table(
    turns: Turns, names: np.ndarray, credit: dict[str, np.ndarray], chosen: np.ndarray, variants: Sequence[str]
) -> list[dict[str, Any]]:
    """One row a decision: its A_MC (`Interval`), its share of A_MC's squares, and of each variant the mean weight, the
    share of the squares of credit, and the part of r."""
    truth = turns.within(turns.advantage)
    clean = turns.within(turns.halves[0]) * turns.within(turns.halves[1])
    inside = {one: turns.within(credit[one]) for one in variants}
    size = {one: np.sqrt((inside[one] ** 2)[chosen].sum() * clean[chosen].sum()) for one in variants}
    rows = []
    for name in sorted(set(names[chosen]), key=lambda one: -clean[chosen & (names == one)].sum()):
        here = chosen & (names == name)
        weight = {one: float(np.mean(credit[one][here] / turns.outcome[here])) for one in variants}
        spread = {one: float((inside[one] ** 2)[here].sum() / (inside[one] ** 2)[chosen].sum()) for one in variants}
        part = {one: float((inside[one] * truth)[here].sum() / size[one]) for one in variants}
        rows.append(
            {
                "decision": name,
                "turns": int(here.sum()),
                "a_mc": task_mean(turns, turns.advantage, here),
                "share": float(clean[here].sum() / clean[chosen].sum()),
                "weight": weight,
                "share_of_credit": spread,
                "part_of_r": part,
            }
        )
    return rows


if __name__ == "__main__":
    main()

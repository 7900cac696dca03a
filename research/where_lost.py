"""Where credit is lost: the correlation with A_MC, taken apart by what the thinking decides (in `webshop_trips`) or by
how actions begin (anywhere).

python -m research.where_lost outputs/fidelity_0 outputs/fidelity_1 --variants align_opsd rlsd --output where_lost.json
python -m research.where_lost outputs/fidelity_0 --by action

r is a sum over turns of credit times A_MC, each less its mean over the trajectory, over one root of sums of squares; so
the turns of a decision have a part of it, and the parts of one side (praised or blamed) add up to its r.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alignopsd_trl.common.files import plain
from alignopsd_trl.measure.metrics import Turns, task_mean
from alignopsd_trl.measure.report import pooled
from alignopsd_trl.measure.table import credit_of, turns_of
from research.pools import short

CAREFUL_SEARCHES = ("search all its words", "search another")


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="what --output of alignopsd measure was")
    parser.add_argument("--variants", nargs="+", default=["align_opsd", "rlsd"])
    parser.add_argument("--by", choices=("thinking", "action"), default="thinking", help="what names a decision")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    measured = pooled(arguments.folders)
    turns, credit = turns_of(measured), credit_of(measured)
    by_action = arguments.by == "action"
    names = kinds(measured.action, measured.task) if by_action else [decision(one) for one in measured.thinking]
    found = plain(
        {side: table(turns, np.array(names), credit, chosen, arguments.variants) for side, chosen in sides(turns)}
    )
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


def kinds(actions: Sequence[str], tasks: Sequence[str], least: float = 0.03) -> list[str]:
    """Names the kind of each action: its longest prefix, in words, that a share ``least`` of the actions have and that
    occurs in three tasks (in all if there are fewer)."""
    met = defaultdict(list)  # a beginning -> the tasks of its actions
    beginnings = [["".join(words[: place + 1]) for place in range(len(words))] for words in map(_words, actions)]
    for own, task in zip(beginnings, tasks, strict=True):
        for one in own:
            met[one].append(task)
    needed, spread = max(2.0, least * len(actions)), min(3, len(set(tasks)))
    frequent = {one for one, found in met.items() if len(found) >= needed and len(set(found)) >= spread}

    def name(own: Sequence[str]) -> str:
        found = next((one for one in reversed(own) if one in frequent), None)
        return "other" if found is None else found.strip() + (" ..." if found != own[-1] else "")

    return [name(own) for own in beginnings]


def _words(action: str) -> list[str]:
    """Splits an action into words: ``click[buy now]`` into ``click[``, ``buy ``, ``now]``; also after tags."""
    return [part for part in re.split(r"(?<=[ \[(>])|(?=<)", action) if part] or ["(none)"]


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

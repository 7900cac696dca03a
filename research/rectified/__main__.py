"""Why rectified credit says less than the turn's own gap: matched views taken apart, against Monte Carlo advantages.

    python -m research.rectified outputs/fidelity_0 outputs/fidelity_1 --model tiny_pairs --output rectified_pairs.json

Evidence here is the mean gap of a turn; r is the correlation of |A| times it with A_MC within trajectories, pooled over
the folders (what ``--output`` of `alignopsd measure` was), with 95 % intervals over resampled tasks.

* signals: the own gap, the aligned gap and its two parts, both ways to rectify, and these with all siblings' turns of
  the very same decision as sources (an oracle), each with H = 1
* sources: with the sources of one kind alone, what both ways to rectify are worth; the kind's share of all retained
  sources and of the squares of what other histories do to the turns' words
* words: the same shares by where in the response a token stands, and r of that part of the evidence
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import torch
from transformers import AutoTokenizer

from alignopsd_trl.commands.measure.measurement import pooled
from alignopsd_trl.commands.measure.metrics import Turns, agreement, turns_of
from alignopsd_trl.common.files import plain
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.statistics import Interval
from alignopsd_trl.turns import Turn
from research.rectified.views import Views, ask

SHOWN = ("r_within", "r_praised", "r_blamed", "r_within_minus_own")
PLACES = ("situation", "plan", "action", "marks")
Chosen = Callable[[Views], torch.Tensor]


def measured(folder: Path) -> np.ndarray:
    """Which of the folder's turns have an A_MC, bool."""
    column = parquet.read_table(folder / "turns.parquet", columns=["a_mc"])["a_mc"].to_numpy()
    return ~np.isnan(column.astype(float))


def short(figure: dict[str, Any]) -> str:
    """As `Interval` is shown."""
    return str(Interval(*(np.nan if figure[name] is None else figure[name] for name in ("value", "low", "high"))))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", required=True, help="what it was there")
    parser.add_argument("--encoder", help="in place of the one that was used there")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments = parser.parse_args(argv)
    rounds = [[*ask(folder, arguments.model, arguments.encoder)] for folder in arguments.folders]
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(arguments.model))
    bench = Pool(arguments.folders, rounds)
    found = plain(
        {
            "folders": [folder.name for folder in arguments.folders],
            "turns": len(bench.turns.task),
            "tasks": len(np.unique(bench.turns.task)),
            "matched": float(bench.of(lambda views: _has(views, views.retained)).mean()),
            "signals": signals(bench),
            "sources": sources(bench),
            "words": words(bench, lambda turn: places(tokenizer.batch_decode([[one] for one in turn.response_ids]))),
        }
    )
    _print(found)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


class Pool:
    """The measured turns of all folders: their A_MC, and columns of what `Views` say of them."""

    def __init__(self, folders: Sequence[Path], rounds: Sequence[Sequence[Views]]):
        self.turns: Turns = turns_of(pooled(folders))
        self.rounds = [views for one in rounds for views in one]
        self._known = np.concatenate([measured(folder) for folder in folders])

    def of(self, column: Callable[[Views], torch.Tensor]) -> np.ndarray:
        """A column ``(M,)`` of every round, the measured turns of it."""
        return torch.cat([column(views) for views in self.rounds]).double().numpy()[self._known]

    def rows(self, column: Callable[[Views], torch.Tensor]) -> torch.Tensor:
        """Values of any length, of every round."""
        return torch.cat([column(views) for views in self.rounds])

    def agreement(self, evidence: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        """Figures of evidence, which moves credit by |A| times itself."""
        size = np.abs(self.turns.outcome)
        figures = agreement(self.turns, {name: size * one for name, one in evidence.items()}, "own")
        return {name: {key: row[key] for key in SHOWN if key in row} for name, row in figures.items()}


def _has(views: Views, keep: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(views.turns)).index_fill_(0, views.target[keep], 1.0)


def _gap(name: str, keep: Chosen, certain: bool = False) -> Callable[[Views], torch.Tensor]:
    return lambda views: views.evidence(views.gaps(keep(views), certain)[name])


def signals(bench: Pool) -> dict[str, Any]:
    names = ("own", "aligned", "history", "skill", "rectified", "source_baseline")
    evidence = {name: bench.of(_gap(name, lambda views: views.retained)) for name in names}
    for name in ("rectified", "source_baseline"):
        evidence[f"{name}, same decisions"] = bench.of(_gap(name, lambda views: views.same, certain=True))
    found = bench.agreement(evidence)
    for name, one in evidence.items():
        found[name]["deviation"] = float(np.sqrt((bench.turns.within(one) ** 2).mean()))
    return found


def kinds() -> dict[str, Chosen]:
    """Of retained sources."""

    def compared(of: Callable[[Views, int, int], bool]) -> Chosen:
        return lambda views: torch.tensor(
            [of(views, *pair) for pair in zip(views.source.tolist(), views.target.tolist(), strict=True)]
        ).bool()

    def apart(views: Views, source: int, target: int) -> int:
        return abs(views.turns[source].number - views.turns[target].number)

    return {
        "all": lambda views: torch.ones_like(views.retained),
        "same decision": lambda views: views.same,
        "another decision": lambda views: ~views.same,
        "same prompt": compared(lambda v, s, t: v.turns[s].prompt_ids == v.turns[t].prompt_ids),
        "another prompt": compared(lambda v, s, t: v.turns[s].prompt_ids != v.turns[t].prompt_ids),
        "come as far": compared(lambda v, s, t: v.decisions[s][:2] == v.decisions[t][:2]),
        "not as far, or farther": compared(lambda v, s, t: v.decisions[s][:2] != v.decisions[t][:2]),
        "of a won sibling": compared(lambda v, s, t: v.won[s]),
        "of a lost sibling": compared(lambda v, s, t: not v.won[s]),
        "same turn number": compared(lambda v, s, t: apart(v, s, t) == 0),
        "1 or 2 turns apart": compared(lambda v, s, t: 0 < apart(v, s, t) <= 2),
        "3 or more turns apart": compared(lambda v, s, t: apart(v, s, t) > 2),
        "H at least .95": lambda views: views.similarity >= 0.95,
        "H below .95": lambda views: views.similarity < 0.95,
    }


def sources(bench: Pool) -> dict[str, Any]:
    own = bench.of(_gap("own", lambda views: views.retained))

    def history(views: Views) -> torch.Tensor:
        moved = views.ordinary - views.student[views.target]
        mask = views.mask[views.target]
        return (torch.where(mask, moved, 0.0).sum(1) / mask.sum(1).clamp_min(1)) ** 2

    found = {}
    for name, of in kinds().items():
        keep = [views.retained & of(views) for views in bench.rounds]
        here = {id(views): one for views, one in zip(bench.rounds, keep, strict=True)}
        chosen, retained = torch.cat(keep), bench.rows(lambda views: views.retained)
        squares = bench.rows(history)
        evidence = {way: bench.of(_gap(way, lambda v, h=here: h[id(v)])) for way in ("rectified", "source_baseline")}
        found[name] = {
            "sources": float(chosen.sum() / retained.sum()),
            "squares of history": float(squares[chosen].sum() / squares[retained].sum()),
            "turns": float(bench.of(lambda views, h=here: _has(views, h[id(views)])).mean()),
            **bench.agreement({"own": own, **evidence}),
        }
        found[name].pop("own")
    return found


def places(tokens: Sequence[str]) -> list[int]:
    """Where each token of a response stands, as a place in `PLACES`: a thought states its situation before its last
    "so" (all of it, if there is none) and its plan after that."""
    text, found = "", []
    whole = "".join(tokens)
    end = whole.find("</think>") if "</think>" in whole else len(whole)
    plan = whole.rfind(" so ", 0, end)
    plan = end if plan < 0 else plan + len(" so ")
    for token in tokens:
        start, text = len(text), text + token
        inner = token.strip(" \n;:,<>")
        mark = not inner or inner == "so" or "think" in inner or "/" in inner or "|" in inner or text == whole
        found.append(3 if mark else 0 if start < plan else 1 if start < end else 2)
    return found


def words(bench: Pool, place: Callable[[Turn], list[int]]) -> dict[str, Any]:
    at = {}
    for views in bench.rounds:
        table = torch.full(views.mask.shape, -1)
        for row, turn in enumerate(views.turns):
            table[row, : len(turn.response_ids)] = torch.tensor(place(turn))
        at[id(views)] = table
    gaps = {id(views): views.gaps(views.retained) for views in bench.rounds}
    found: dict[str, Any] = {}
    for number, name in enumerate(PLACES):
        row: dict[str, Any] = {}
        evidence = {}
        for signal in ("own", "aligned", "history", "skill"):
            part = bench.of(
                lambda v, s=signal: v.evidence(torch.where(at[id(v)] == number, gaps[id(v)][s], 0.0))  # noqa: B023
            )
            total, here = (
                bench.of(lambda v, s=signal, m=mask: torch.where(m(v), gaps[id(v)][s], 0.0).square().sum(1)).sum()
                for mask in (lambda v: v.mask, lambda v: at[id(v)] == number)  # noqa: B023
            )
            row[f"squares of {signal}"], evidence[signal] = float(here / total), part
        count = bench.of(lambda v: (at[id(v)] == number).sum(1)).sum()  # noqa: B023
        row["tokens"] = float(count / bench.of(lambda v: v.mask.sum(1)).sum())
        found[name] = row | bench.agreement(evidence)
    return found


def _print(found: dict[str, Any]) -> None:
    print(f"{found['tasks']} tasks that differ, {found['turns']} turns, {found['matched']:.2f} of them matched")
    for name, row in found["signals"].items():
        print(f"{name:34} {row['deviation']:.3f}", *(short(row[key]) for key in SHOWN if key in row), sep=" | ")
    for name, row in found["sources"].items():
        shares = [f"{row[key]:.2f}" for key in ("sources", "squares of history", "turns")]
        ways = [short(row[way][key]) for way in ("rectified", "source_baseline") for key in (SHOWN[0], SHOWN[3])]
        print(f"{name:34}", *shares, *ways, sep=" | ")
    for name, row in found["words"].items():
        shares = [f"{row[key]:.2f}" for key in row if key.startswith("squares")]
        each = [short(row[signal][SHOWN[0]]) for signal in ("own", "aligned", "history", "skill")]
        print(f"{name:34} {row['tokens']:.2f}", *shares, *each, sep=" | ")


if __name__ == "__main__":
    main()

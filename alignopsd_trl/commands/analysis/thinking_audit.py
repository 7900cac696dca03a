"""Tests whether similar thinking means comparable decisions (the paper's appendix "Thinking-based Correspondence").

thinking, teacher's thinking ──► H of every task ──► same state, all, above gamma_H, used   (densities)
                                                 └─► best eligible source of each target    (coverage)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from alignopsd_trl.commands.analysis.drawing import BLUE, GREY, ORANGE, PURPLE, AnalysisResult, label, panels, percent
from alignopsd_trl.commands.analysis.loading import Records, name_of, results_of, setting, turns_of, used_pairs
from alignopsd_trl.common.statistics import clustered_ratio
from alignopsd_trl.encoder import Encoder, load_encoder
from alignopsd_trl.methods.align_opsd.correspondence import cosine, eligibility

COLUMNS = [
    *("thinking", "credit_teacher_thinking", "credit_row"),
    *("credit_sources", "credit_source_similarities", "credit_source_weights"),
]
TOLERANCE = 0.02  # other hardware and batch sizes change a cosine in bfloat16 by less
EDGES = np.linspace(-1, 1, 201)
SETS = {
    "same state": (GREY, "-", 3.6),
    "all cross-rollout": (BLUE, "-", 2.2),
    "above threshold": (PURPLE, "--", 1.6),
    "used": (ORANGE, ":", 1.6),
}
"""Colour, dashes and width of each line. Later lines are narrower, so that none hides another."""


def thinking(
    run: Records,
    encoder: str | Encoder | None = None,
    threshold: float | None = None,
    steps: Sequence[int] | None = None,
) -> AnalysisResult:
    """Draws distributions of thinking similarity over four sets of pairs, and the share of matched turns by threshold.

    Args:
        run: a run of AlignOPSD with matches.
        encoder (*optional*): the run's own by default. It encodes reasoning traces again, which for a big run needs a
            GPU or few ``steps``.
        threshold (*optional*): gamma_H; the run's own by default.

    Raises:
        ValueError: if the run recorded no matches, or used another encoder.
    """
    frame = turns_of(run, COLUMNS, steps)
    threshold = setting(run, "similarity_threshold", 0.8) if threshold is None else threshold
    sums: dict[str, dict[int, np.ndarray]] = {name: defaultdict(lambda: np.zeros(3)) for name in SETS}
    bins, best, apart = {name: np.zeros(len(EDGES) - 1) for name in SETS}, [], []
    for pairs in task_pairs(run, frame, encoder_of(run, encoder)):
        step = int(pairs.turns.step.iloc[0])
        for name, values in _sets(pairs, threshold).items():
            values = values.astype(float)
            sums[name][step] += len(values), values.sum(), (values**2).sum()
            bins[name] += np.histogram(values, EDGES)[0]
        best.append(np.where(pairs.eligible, pairs.similarity, -np.inf).max(0))  # highest over each target's sources
        turn = pairs.turns.turn.to_numpy()
        apart.append(np.abs(turn[pairs.used[:, 0]] - turn[pairs.used[:, 1]]))
    if not best:
        raise ValueError(
            f"{name_of(run)} has no turn with a reasoning trace of the teacher in these steps; choose other steps"
        )
    table, best = pd.DataFrame([_row(name, sums[name]) for name in SETS]), np.concatenate(best)
    gammas = np.round(np.linspace(0, 1, 101), 2)
    coverage = pd.DataFrame({"gamma_H": gammas, "share": [float((best >= gamma).mean()) for gamma in gammas]})
    densities = {name: count / max(count.sum(), 1) / np.diff(EDGES) for name, count in bins.items()}
    density = pd.DataFrame({"similarity": (EDGES[1:] + EDGES[:-1]) / 2, **densities})
    numbers = {
        "gamma_H": float(threshold),
        "pairs": {row["set"]: {k: row[k] for k in ("count", "mean", "std")} for row in table.to_dict("records")},
        "matching": _matching(frame, np.concatenate(apart)),
        "share of targets with a source above gamma_H": float((best >= threshold).mean()),
    }
    ends = {name: [mean and mean[at] for mean in table["mean"]] for at, name in enumerate(("mean", "low", "high"))}
    flat = table.drop(columns="mean").assign(**ends)
    tables = {"pairs": flat, "density": density, "coverage": coverage}
    return AnalysisResult("thinking", numbers, tables, _drawn(density, coverage, threshold, table))


def _sets(pairs: TaskPairs, threshold: float) -> dict[str, np.ndarray]:
    similarity, diagonal = pairs.similarity, pairs.similarity.diagonal()
    traced = (pairs.turns.thinking.fillna("") != "") & (pairs.turns.credit_teacher_thinking.fillna("") != "")
    return {
        "same state": diagonal[traced.to_numpy()],
        "all cross-rollout": (every := similarity[pairs.eligible]),
        "above threshold": every[every >= threshold],
        "used": similarity[pairs.used[:, 0], pairs.used[:, 1]],
    }


def _row(name: str, sums: dict[int, np.ndarray]) -> dict[str, Any]:
    """Returns count, mean and standard deviation over all pairs. The interval of the mean resamples rollout steps."""
    by_step = np.array(list(sums.values())).reshape(-1, 3)
    count, total, squares = by_step.sum(0)
    spread = float(np.sqrt(max(squares / count - (total / count) ** 2, 0.0))) if count else None
    return {"set": name, "count": int(count), "mean": clustered_ratio(by_step[:, 1], by_step[:, 0]), "std": spread}


def _matching(frame: pd.DataFrame, apart: np.ndarray) -> dict[str, Any]:
    counts = frame.credit_sources[frame.credit_teacher_thinking.notna()].map(len)
    matched = counts[counts > 0]
    return {
        "targets": len(counts),
        "share with a source": float((counts > 0).mean()),
        "sources per target": float(counts.mean()),
        "sources per matched target": float(matched.mean()) if len(matched) else None,
        "share at another turn": float((apart > 0).mean()) if len(apart) else None,
        "displacement, median (turns)": float(np.median(apart)) if len(apart) else None,
        "displacement, mean (turns)": float(apart.mean()) if len(apart) else None,
    }


def _drawn(density: pd.DataFrame, coverage: pd.DataFrame, threshold: float, table: pd.DataFrame) -> Any:
    figure, axes = panels(2, width=4.4)
    counts = dict(zip(table["set"], table["count"], strict=True))
    for name, (colour, dashes, width) in SETS.items():
        if counts[name]:
            axes[0].step(
                density.similarity, density[name], where="mid", color=colour, linestyle=dashes, linewidth=width,
                label=f"{name}, {counts[name]:,}",
            )  # fmt: skip
    seen = density.similarity[(density[list(SETS)] > 0).any(axis=1)]
    axes[0].set_xlim(seen.min() - 0.02, 1.02)
    axes[0].set_yscale("symlog", linthresh=1)
    axes[0].set_ylim(0, None)
    label(axes[0], "(a) similarity of thinking", "cosine", "density", legend=True)
    axes[1].plot(coverage["gamma_H"], 100 * coverage.share, color=BLUE)
    percent(axes[1])
    label(axes[1], "(b) turns with a source", r"threshold $\gamma_H$", "share of turns (%)")
    for axis in axes:
        axis.axvline(threshold, color=GREY, linestyle="--", linewidth=1)
    axes[1].annotate(r"the run's $\gamma_H$", (threshold, 4), fontsize=7, ha="right", rotation=90, color=GREY)
    return figure


# H of every task; records hold used pairs alone


@dataclass(frozen=True)
class TaskPairs:
    """One task of one step.

    Attributes:
        turns: its m turns, in canonical order.
        similarity: ``(m, m)`` H, ``[source, target]``.
        eligible: ``(m, m)`` bool.
        used: ``(u, 2)`` source and target of the pairs in training, as rows of ``turns``.
        weights: ``(u,)`` of these pairs.
    """

    turns: pd.DataFrame
    similarity: np.ndarray
    eligible: np.ndarray
    used: np.ndarray
    weights: np.ndarray


def encoder_of(run: Records, encoder: str | Encoder | None) -> Encoder:
    """Returns the given encoder, or the one that ``results.json`` names."""
    found = encoder or (results_of(run).get("encoder") or {}).get("name")
    if found is None:
        raise ValueError(f"{name_of(run)} does not say which encoder made its matches; pass it: --encoder lexical")
    return load_encoder(found)


def task_pairs(run: Records, frame: pd.DataFrame, encoder: Encoder) -> Iterator[TaskPairs]:
    """Yields every task with reasoning traces of the teacher, by step, from a frame with `COLUMNS`. Raises `ValueError`
    if the encoder does not reproduce the recorded similarities."""
    for _, turns in frame[frame.credit_teacher_thinking.notna()].groupby(["step", "task"], sort=True):
        turns = turns.reset_index(drop=True)
        teacher, student = turns.credit_teacher_thinking.fillna(""), turns.thinking.fillna("")
        similarity = cosine(*(encoder(texts.tolist()).float().cpu() for texts in (teacher, student))).numpy()
        rollout = torch.tensor(turns.groupby("rollout").ngroup().to_numpy())
        said = [torch.tensor((side != "").to_numpy()) for side in (teacher, student)]
        pairs = used_pairs(turns)
        used = pairs[["at_source", "at"]].to_numpy(int)
        recorded, weights = (pairs[f"credit_source_{name}"].to_numpy(float) for name in ("similarities", "weights"))
        if (apart := np.abs(similarity[used[:, 0], used[:, 1]] - recorded).max(initial=0)) > TOLERANCE:
            raise ValueError(
                f"encoder {encoder.name!r} gives similarities that are up to {apart:.2f} from those that "
                f"{name_of(run)} recorded; pass the encoder that the run was trained with: --encoder"
            )
        yield TaskPairs(turns, similarity, eligibility(rollout, *said).numpy(), used, weights)

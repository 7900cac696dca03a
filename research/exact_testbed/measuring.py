"""Turn credit of methods in the arena, against what each turn was worth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from alignopsd_trl.commands.measure.metrics import Turns, agreement
from alignopsd_trl.commands.measure.variants import CachedTeacher, turn_credit
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.methods.grpo import outcome
from alignopsd_trl.turns import TurnBatch
from research.exact_testbed.games import ExactTeacher, Game, Sampled, make_batch, sample_groups

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "align_opsd": ("align_opsd", {}),
    "align_opsd, no rectification": ("align_opsd", {"rectify": False}),
    "align_opsd T .05, turn": ("align_opsd", {"credit_temperature": 0.05, "allocation": "turn"}),
    "no rectification T .05, turn": (
        "align_opsd",
        {"rectify": False, "credit_temperature": 0.05, "allocation": "turn"},
    ),
    "align_opsd gamma_H .95, T .05, turn": (
        "align_opsd",
        {"similarity_threshold": 0.95, "credit_temperature": 0.05, "allocation": "turn"},
    ),
    "align_opsd, no filter": ("align_opsd", {"action_filter": "none"}),
    "align_opsd, no filter, gamma_H .95": ("align_opsd", {"action_filter": "none", "similarity_threshold": 0.95}),
    "align_opsd, no filter, gamma_H .95, T .05, turn": (
        "align_opsd",
        {"action_filter": "none", "similarity_threshold": 0.95, "credit_temperature": 0.05, "allocation": "turn"},
    ),
    "rlsd": ("rlsd", {}),
    "gigpo": ("gigpo", {}),
}


def credits(
    sampled: Sampled, folder: Path, draw: random.Random, encoder: str = "lexical"
) -> tuple[Any, dict[str, np.ndarray]]:
    """The batch, and turn credit of every one of `VARIANTS`."""
    batch = make_batch(sampled)
    teacher = CachedTeacher(ExactTeacher(sampled, load_encoder(encoder), draw))
    return batch, {label: credit_of(*variant, batch, teacher, folder) for label, variant in VARIANTS.items()}


def credit_of(name: str, settings: Mapping[str, Any], batch: TurnBatch, teacher: Any, folder: Path) -> np.ndarray:
    """Turn credit ``(M,)`` of one method."""
    shared = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none"}
    usual = {"action_filter": "webshop", "valid_profiles": "matched"}  # as in the figures on record
    config = AlignOPSDConfig(method=name, **shared, **usual | dict(settings))
    method = get_method(name)(config)
    return turn_credit(checked_credit(method, batch, teacher, 0), batch).numpy()


def columns(sampled: Sampled, batch: Any, task_shift: int) -> Turns:
    exact = sampled.advantages(batch.turns)
    config = AlignOPSDConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none")
    sides = outcome(batch, config).advantage.numpy()
    rollout = batch.groups.rollout.numpy()
    small = np.full(len(exact), 0.01)
    return Turns(batch.groups.task.numpy() + task_shift, rollout, sides, exact, small, np.stack([exact, exact]))


def cosine(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    rows = [np.array([one.get(name, 0.0) for name in sorted(left.keys() | right.keys())]) for one in (left, right)]
    return float(rows[0] @ rows[1] / max(np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]), 1e-12))


def total_gradient(games: Sequence[Game]) -> dict[str, float]:
    parts = [game.gradient() for game in games]
    return {name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))}


def measure(
    games: Sequence[Game], batches: int, siblings: int, folder: Path, seed: int = 0, encoder: str = "lexical"
) -> dict[str, dict[str, Any]]:
    """For every variant r within trajectories (with its interval over tasks) and the mean cosine of its gradient with
    the exact one."""
    draw, parts, gradients, exact = random.Random(seed), [], {}, total_gradient(games)
    for number in range(batches):
        sampled = sample_groups(games, siblings, draw)
        batch, found = credits(sampled, folder, draw, encoder)
        turns = columns(sampled, batch, number * len(games))
        parts.append((turns, found))
        for label, values in {**found, "exact": turns.advantage}.items():
            gradients.setdefault(label, []).append(cosine(sampled.gradient(batch.turns, values), exact))
    turns = _joined([one for one, _ in parts])
    credit = {label: np.concatenate([found[label] for _, found in parts]) for label in VARIANTS}
    figures = agreement(turns, credit, "align_opsd")
    table = {label: {"r_within": row["r_within"], "lift": row["lift"]} for label, row in figures.items()}
    table["exact"] = {}
    return {label: row | {"gradient": float(np.mean(gradients[label]))} for label, row in table.items()}


def _joined(parts: Sequence[Turns]) -> Turns:
    shift, trajectory = 0, []
    for one in parts:
        trajectory.append(one.trajectory + shift)
        shift += int(one.trajectory.max()) + 1
    return Turns(
        np.concatenate([one.task for one in parts]),
        np.concatenate(trajectory),
        np.concatenate([one.outcome for one in parts]),
        np.concatenate([one.advantage for one in parts]),
        np.concatenate([one.error for one in parts]),
        np.concatenate([one.halves for one in parts], axis=1),
    )

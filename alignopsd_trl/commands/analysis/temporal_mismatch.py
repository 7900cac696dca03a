"""Tests whether corresponding decisions share timestamps (the paper's appendix "Temporal Misalignment").

records ──► operations ──► pairs of rollouts of one task ──► same turn, other kind   (disagreement)
                                                         └─► same entity, other turn (displacement)
credit_sources ──► share of matching weight on other turn numbers                    (use in training)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alignopsd_trl.commands.analysis.drawing import LINES, AnalysisResult, band, curve, label, panels, percent
from alignopsd_trl.commands.analysis.loading import EPISODE, Records, name_of, turns_of, used_pairs
from alignopsd_trl.common.statistics import clustered_ratio

_SOURCES = ["credit_row", "credit_sources", "credit_source_weights"]


def temporal(run: Records, steps: Sequence[int] | None = None) -> AnalysisResult:
    """Measures same-turn disagreement and cross-turn displacement of siblings and, where the teacher played some of
    them (``privileged_siblings``), of the policy's rollouts with the teacher's. Raises `ValueError` if no task has two
    rollouts of the policy."""
    frame = turns_of(run, ["observation"], steps, welcome=["privileged", *_SOURCES])
    taught = frame.get("privileged", pd.Series(False, frame.index)).fillna(False).astype(bool)
    own, theirs = _episodes(frame[~taught]), _episodes(frame[taught])
    compared = {"self-self": [(key[1], *pair) for key, one in own.items() for pair in combinations(one, 2)]}
    if theirs:
        both = ((key, product(one, theirs.get(key, []))) for key, one in own.items())
        compared["self-privileged"] = [(key[1], *pair) for key, pairs in both for pair in pairs]
    if empty := [name for name, found in compared.items() if not found]:
        raise ValueError(f"no {empty[0]} pairs in {name_of(run)}: a task needs two rollouts, and both sides the task")
    same = pd.concat([_same_turn(pairs).assign(comparison=name) for name, pairs in compared.items()])
    moved = pd.concat([_matches(pairs).assign(comparison=name) for name, pairs in compared.items()])
    numbers: dict[str, Any] = {name: _numbers(same, moved, pairs, name) for name, pairs in compared.items()}
    used = _training_use(frame)
    tables = {"same_turn": _by_turn(same), "displacement": moved} | ({} if used is None else {"off_turn_weight": used})
    if used is not None:
        numbers["off-turn share of matching weight"] = clustered_ratio(used.off_turn_weight, used.weight)
    return AnalysisResult("temporal", numbers, tables, _drawn(tables))


# Pairs of rollouts


def _episodes(frame: pd.DataFrame) -> dict[tuple[int, str], list[list[Operation | None]]]:
    """Returns operations of each rollout by (step, task)."""
    found: dict[tuple[int, str], list[list[Operation | None]]] = {}
    by_rollout: Any = frame.groupby(EPISODE, sort=True)
    for (step, task, _), turns in by_rollout:
        if turns.task_id.notna().all():
            task = turns.task_id.iloc[0]
        read = operations(turns.action.tolist(), turns.observation.tolist(), turns.action_valid.astype(bool).tolist())
        found.setdefault((int(step), str(task)), []).append(read)
    return found


def _same_turn(pairs: list[tuple[str, list, list]]) -> pd.DataFrame:
    """Counts positions where both rollouts act, by task and turn, and those that differ in kind."""
    rows = [
        (task, turn, ours.kind != theirs.kind)
        for task, left, right in pairs
        for turn, (ours, theirs) in enumerate(zip(left, right, strict=False))
        if ours and theirs
    ]
    groups: Any = pd.DataFrame(rows, columns=["task", "turn", "differs"]).groupby(["task", "turn"], sort=False)
    return groups.differs.agg(positions="size", different="sum").reset_index()


def matched_turns(left: Sequence[Operation | None], right: Sequence[Operation | None]) -> list[tuple[int, int]]:
    """Pairs turns of two rollouts with the same operation on the same entity. The result is an order-preserving
    matching with the most pairs and, among those, the least total displacement."""
    # Of the rest of both: number of pairs, negative displacement, pairs.
    below: list[tuple[int, int, tuple]] = [(0, 0, ())] * (len(right) + 1)
    for row in range(len(left) - 1, -1, -1):
        here = [below[-1]] * (len(right) + 1)
        for column in range(len(right) - 1, -1, -1):
            options = [below[column], here[column + 1]]
            if (mine := left[row]) is not None and mine.entity is not None and mine == right[column]:
                pairs, near, path = below[column + 1]
                options.insert(0, (pairs + 1, near - abs(row - column), ((row, column), *path)))
            here[column] = max(options, key=lambda one: one[:2])
        below = here
    return list(below[0][2])


def _matches(pairs: list[tuple[str, list, list]]) -> pd.DataFrame:
    rows = [
        (task, row, column, abs(row - column), left[row].kind, " ".join(left[row].entity))
        for task, left, right in pairs
        for row, column in matched_turns(left, right)
    ]
    return pd.DataFrame(rows, columns=["task", "left_turn", "right_turn", "displacement", "kind", "entity"])


# Numbers


def _numbers(same: pd.DataFrame, moved: pd.DataFrame, pairs: list, name: str) -> dict[str, Any]:
    same, moved = same[same.comparison == name], moved[moved.comparison == name]
    tasks = same.groupby("task")[["different", "positions"]].sum()
    exposures = sum(one is not None for _, left, _ in pairs for one in left)  # all that parsed, as in the paper
    off = moved.assign(off=moved.displacement > 0).groupby("task").off.agg(["sum", "count"])
    return {
        "rollout pairs": len(pairs),
        "positions with two parseable actions": int(same.positions.sum()),
        "different kinds at the same turn": clustered_ratio(tasks.different, tasks.positions),
        "matched entity-action pairs": len(moved),
        "entity-action coverage": len(moved) / exposures if exposures else None,
        "matched actions at different turns": clustered_ratio(off["sum"], off["count"]) if len(off) else None,
        "absolute displacement, median (turns)": float(moved.displacement.median()) if len(moved) else None,
    }


def _by_turn(same: pd.DataFrame) -> pd.DataFrame:
    groups: Any = same.groupby(["comparison", "turn"])
    rows = [
        (*key, part.positions.sum(), part.different.sum(), *(clustered_ratio(part.different, part.positions) or ()))
        for key, part in groups
    ]
    return pd.DataFrame(rows, columns=["comparison", "turn", "positions", "different", "share", "low", "high"])


def _training_use(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Returns by step the matching weight on sources at other turn numbers; `None` for a run without matches."""
    if not {*_SOURCES} <= {*frame} or (pairs := used_pairs(frame)).empty:
        return None
    weight = pairs.credit_source_weights
    pairs = pairs.assign(weight=weight, off_turn_weight=weight * (pairs.turn_source != pairs.turn))
    found = pairs.groupby("step")[["weight", "off_turn_weight"]].sum().reset_index()
    return found.assign(share=found.off_turn_weight / found.weight)


# The figure


def _drawn(tables: dict[str, pd.DataFrame]) -> Any:
    figure, axes = panels(len(tables))
    pens: dict[Any, Any] = {"self-self": LINES[0], "self-privileged": LINES[1]}
    for name, part in tables["same_turn"].groupby("comparison"):
        colour, dashes = pens[name]
        axes[0].plot(part.turn, 100 * part.share, "o", ms=3, ls=dashes, color=colour, label=name)
        band(axes[0], part.turn, 100 * part.low, 100 * part.high, colour)
    label(axes[0], "(a) same turn, different kind of action", "turn", "share of pairs (%)", legend=True)
    percent(axes[0])
    moved, jitter = tables["displacement"], np.random.default_rng(0)
    for name, part in moved.groupby("comparison"):
        colour, dashes = pens[name]
        axes[1].plot(
            part.left_turn + jitter.uniform(-0.2, 0.2, len(part)),
            part.displacement + jitter.uniform(-0.2, 0.2, len(part)),
            "o", ms=2, alpha=0.2, color=colour,
        )  # fmt: skip
        means = part.groupby("left_turn").displacement.mean()
        axes[1].plot(means.index, means, "o", ms=4, ls=dashes, color=colour, label=f"{name}, mean")
    label(axes[1], "(b) matched actions", "turn of the match in one rollout", "distance (turns)", legend=len(moved) > 0)
    if "off_turn_weight" in tables:
        used = tables["off_turn_weight"]
        curve(axes[2], used.step, 100 * used.share, 0, "off-turn")
        percent(axes[2])
        label(axes[2], "(c) matches at another turn number", "rollout step", "share of matching weight (%)")
    return figure


_WEBSHOP = re.compile(r"\s*(search|click)\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(r"\s*<(search|answer)>(.*)</\1>\s*", re.DOTALL | re.IGNORECASE)
_PRODUCT = re.compile(r"b[0-9a-z]{9}|\d{10}")
_TABS = ("description", "features", "reviews", "attributes")
_MOVES = ("back to search", "next >", "< prev")
_VERBS = ("go to", "look", "inventory")  # ALFWorld's verbs of several words, and verbs without an object


class Operation(NamedTuple):
    """An operation, of a kind such as ``"product"`` or ``"take"``, and the words that name its object; `None` if the
    action has no object that another rollout could act on too."""

    kind: str
    entity: tuple[str, ...] | None = None


def operations(actions: Sequence[str], observations: Sequence[str], valid: Sequence[bool]) -> list[Operation | None]:
    """Returns the operations of one episode, turn by turn; `None` for an action that did not parse.

    The entity of a product selection is that product. For WebShop's other clicks it is the product of the open page
    and, if present, the option or tab. A search or a move between pages has none.
    """
    found: list[Operation | None] = []
    product: str | None = None
    for action, observation, usable in zip(actions, observations, valid, strict=True):
        shop = _WEBSHOP.fullmatch(action or "")
        operation = (_shopping(shop, product) if shop else _plain(action or "")) if usable else None
        found.append(operation)
        if operation and operation.entity and operation.kind == "product":
            product = operation.entity[0]
        elif shop and "total results:" in (observation or "").lower() or operation == Operation("search"):
            product = None
    return found


def _shopping(match: re.Match, product: str | None) -> Operation:
    argument = match[2].strip().lower()
    if match[1].lower() == "search":
        return Operation("search")
    if argument in _MOVES:
        return Operation("navigation")
    if _PRODUCT.fullmatch(argument):
        return Operation("product", (argument,))
    on = (product,) if product else None
    if argument == "buy now":
        return Operation("purchase", on)
    return Operation("tab" if argument in _TABS else "option", on and (*on, argument))


def _plain(action: str) -> Operation | None:
    if tagged := _TAGGED.fullmatch(action):
        return Operation(tagged[1].lower(), (" ".join(tagged[2].lower().split()),))
    words = action.lower().split()
    if not words:
        return None
    kind = next((verb for verb in _VERBS if action.lower().strip().startswith(verb)), words[0])
    rest = " ".join(words)[len(kind) :].strip()
    return Operation(kind, (rest,) if rest else None)

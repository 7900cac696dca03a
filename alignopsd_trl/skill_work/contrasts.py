"""What siblings that won did where siblings that lost did something else: the same step, task and observation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from alignopsd_trl.analysis.loading import EPISODE, turns_of
from alignopsd_trl.turns import StopReason

COMMON = 0.1  # share of the tasks that must know an action for it to be named as it is
FEWEST = 2  # tasks that must show a contrast


@dataclass(frozen=True)
class Contrast:
    """Actions of winners and of losers, as a form that several tasks share.

    Args:
        won, lost: the forms.
        state, task_text, did, instead: an example: what was seen, the task, and the two actions.
        turns: ``step/task/rollout/turn`` of the example turns of each task, winner's and loser's.
        tasks: that show it, less those that show the opposite.
    """

    category: str
    won: str
    lost: str
    state: str
    task_text: str
    did: str
    instead: str
    turns: tuple[str, ...]
    tasks: int


def contrasts(run: Path, most: int) -> list[Contrast]:
    """Returns the contrasts of a run that most tasks show, ``most`` a category.

    Raises:
        FileNotFoundError: if there are no records.
        ValueError: if no two tasks show the same contrast.
    """
    frame = first_visits(turns_of(run, ["observation", "stop"]))
    known = frame.groupby("action").task.nunique()
    common = set(known[known >= max(FEWEST, COMMON * frame.task.nunique())].index)
    found: dict[tuple[str, str, str], list[tuple[dict, dict]]] = defaultdict(list)
    for _, here in frame.groupby(["step", "task", "state"]):
        means = here.groupby("action").outcome.mean()
        if means.max() > means.min():
            did, instead = (here[here.action == one].iloc[0].to_dict() for one in (means.idxmax(), means.idxmin()))
            if pair := forms(did["action"], instead["action"], did["task_text"], common):
                found[did["category"] or "all", *pair].append((did, instead))
    tasks = {key: len({did["task"] for did, _ in pairs}) for key, pairs in found.items()}
    told: dict[str, list[Contrast]] = defaultdict(list)
    for (category, won, lost), pairs in found.items():
        net = tasks[category, won, lost] - tasks.get((category, lost, won), 0)
        if net >= FEWEST:
            did, instead = pairs[0]
            example = (did["state"], did["task_text"], did["action"], instead["action"])
            turns = tuple(_name(one) for pair in pairs for one in pair)
            told[category].append(Contrast(category, won, lost, *example, turns, net))
    if not told:
        raise ValueError(f"{run}: no two tasks where siblings won and lost from one state by the same two actions")
    return [one for own in told.values() for one in sorted(own, key=lambda one: -one.tasks)[:most]]


def first_visits(turns: pd.DataFrame) -> pd.DataFrame:
    """Adds ``state``, the observation before the turn (empty at first), as gigpo does, and ``outcome``. Keeps each
    episode's first visit of a state. Leaves out episodes whose environment failed."""
    turns = turns[turns.stop != StopReason.ENVIRONMENT_ERROR.value]
    before = turns.groupby(EPISODE).observation.shift().fillna("")
    outcome = turns.won.astype(float).fillna(turns.reward)
    return turns.assign(state=before, outcome=outcome).drop_duplicates([*EPISODE, "state"])


def forms(won: str, lost: str, task_text: str, common: Collection[str]) -> tuple[str, str] | None:
    """Returns both actions in the environment's own words where many tasks know them, else by their verb and whether
    the task names their words; `None` where nothing tells them apart."""
    known = set(re.findall(r"\w+", task_text.lower()))

    def form(action: str) -> tuple[str, int]:
        verb, *words = re.findall(r"\w+", action.lower()) or [action]
        named = sum(word in known for word in words)
        if action in common or not words:
            return action, named
        return f"{verb} with {'words' if named == len(words) else 'other words than those'} of the task", named

    (one, more), (other, fewer) = form(won), form(lost)
    if one == other and more == fewer:
        return None
    same = (", more", ", fewer") if more > fewer else (", fewer", ", more")
    ends = same if one == other else ("", "")
    return one + ends[0], other + ends[1]


def _name(turn: dict) -> str:
    return f"{turn['step']}/{turn['task']}/{turn['rollout']}/{turn['turn']}"

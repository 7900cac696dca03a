"""Tasks and panels: the goals for training and for testing.

Canonical splits (the default): one goal list (construction seed 42, shuffle seed 233). ``test`` is its first 500 goals,
``train`` the rest without goals that repeat one of ``test`` word for word. A list of fewer than 1,000 goals gives its
first half to ``test``.

Released splits: as the published training code of the paper family draws them. Group k of a batch has a goal list of
its own (seed ``split_seed + k``, validation ``split_seed + 1000 + k``), and indices come from one continuing generator
a split. The same goal can be in both splits: they **overlap**.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from alignopsd_trl.environments.panel import SplitTasks
from alignopsd_trl.environments.webshop.engine.goals import GoalList
from alignopsd_trl.environments.webshop.environment import Shops
from alignopsd_trl.environments.webshop.options import WebShopOptions

TEST_GOALS = 500
TRAIN_TASKS, VALIDATION_TASKS = 16, 128  # a batch, in the published scripts
TRAIN_BATCHES = 150
VALIDATION_SHIFT = 1000


def test_size(goals: int) -> int:
    """Returns how many goals at the start of a list are for testing: 500, or half of fewer than 1,000."""
    return TEST_GOALS if goals >= 2 * TEST_GOALS else goals // 2


def task_draws(pool: range, count: int, group_size: int, seed: int) -> Iterator[list[int]]:
    """Yields batches of goal indices as in the released code: ``count`` different ones, each ``group_size`` times."""
    generator = np.random.RandomState(seed)
    while True:
        chosen = generator.choice(pool, size=count, replace=False)
        yield np.repeat(chosen, group_size).tolist()


def split_rule(options: WebShopOptions, goals: int) -> str:
    """Describes how the splits of a list of ``goals`` goals are drawn."""
    if options.splits == "released":
        return "released: one goal list a group (seed + group), so train and test overlap"
    return f"canonical: test = goals 0..{test_size(goals) - 1}, train = the rest without repetitions of test; disjoint"


class Tasks(SplitTasks):
    """The tasks of a set of shops, with ``task_id, category, goal_index, instruction`` (and ``env_seed``). Panels are
    named with the options that choose their goals."""

    environment = "webshop"

    def __init__(self, shops: Shops):
        self._shops, self._options = shops, shops.options
        self.suffix = f"-{self._options.splits}-{'human' if self._options.human_goals else 'synthetic'}"

    def _rows(self, split: str) -> list[dict[str, Any]]:
        return self._canonical(split) if self._options.splits == "canonical" else self._released(split)

    def _canonical(self, split: str) -> list[dict[str, Any]]:
        goals = self._shops.of_seed(None).goals
        tests = test_size(len(goals))
        test = [_row(goals, index, f"canonical-{index:05d}") for index in range(tests)]
        if split == "test":
            return test
        tested = {row["instruction"] for row in test}
        train = (_row(goals, index, f"canonical-{index:05d}") for index in range(tests, len(goals)))
        return [row for row in train if row["instruction"] not in tested]

    def _released(self, split: str) -> list[dict[str, Any]]:
        train = split == "train"
        base = self._options.split_seed + (0 if train else VALIDATION_SHIFT)
        tests, total = (test_size(n := len(self._shops.of_seed(base).goals)), n)
        pool = range(tests, total) if train else range(tests)
        count = min(TRAIN_TASKS if train else VALIDATION_TASKS, len(pool))
        draws = task_draws(pool, count, 1, base)
        rows = []
        for batch in range(TRAIN_BATCHES if train else 1):
            for group, index in enumerate(next(draws)):
                goals = self._shops.of_seed(base + group).goals
                identity = f"released-{split}-{batch:04d}-{group:03d}"
                rows.append({**_row(goals, index, identity), "env_seed": base + group})
        return rows


def _row(goals: GoalList, index: int, identity: str) -> dict[str, Any]:
    goal = goals[index]
    return {
        "task_id": identity,
        "category": goal["category"],
        "goal_index": index,
        "instruction": goal["instruction_text"],
    }

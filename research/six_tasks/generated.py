"""A suite of generated rows, which five of the tasks share."""

import random

from datasets import Dataset

from alignopsd_trl.environments import Suite, TaskPanel

SPLITS = {"train": (0, 1024), "test": (10_000, 100)}


def suite_of(name, factory, make, categories, skill, kind):
    """Makes a suite whose row n is ``make(random.Random(n))``, whose column ``kind`` is its category; ``skill`` is a
    function of task text and row."""

    def rows(split):
        first, count = SPLITS[split]
        made = [make(random.Random(first + n)) for n in range(count)]
        return [{"task_id": f"{name}/{split}/{n}", "category": one[kind], **one} for n, one in enumerate(made)]

    return Suite(
        name=name,
        factory=factory,
        tasks=lambda split: Dataset.from_list(rows(split)),
        panel=lambda split: TaskPanel.of(name, split, rows(split)),
        categories=tuple(categories),
        description={},
        skill_bank=skill,
    )

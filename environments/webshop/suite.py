"""The WebShop suite: factory, tasks, panels and what a result must record."""

from __future__ import annotations

import os
from typing import Any

from environments.base import Suite
from environments.webshop.environment import Factory, open_shops
from environments.webshop.nouns import extractor
from environments.webshop.options import WebShopOptions
from environments.webshop.tasks import SPLITS, Tasks, test_size


def suite(**options: Any) -> Suite:
    """WebShop with its tasks. Options: see `WebShopOptions`.

    Raises:
        DataError: on data that cannot be used.
        ValueError: on an option value that is not one of its choices.
    """
    for name in ("data_dir", "cache_dir"):
        if isinstance(options.get(name), os.PathLike):
            options[name] = os.fspath(options[name])
    chosen = WebShopOptions(**options)
    shops = open_shops(chosen)
    tasks = Tasks(shops)
    goals = shops.of_seed(None).goals
    description = {
        "environment": "webshop",
        "catalogue": shops.catalogue.checksum,
        "products": len(shops.catalogue),
        "goals": len(goals),
        "nouns": extractor(chosen.nouns)[0],
        "repairs": shops.catalogue.notes["repairs"],
        "split_rule": _split_rule(chosen, len(goals)),
        **chosen.described(),
    }
    return Suite(
        name="webshop",
        factory=Factory(chosen),
        tasks=tasks.dataset,
        panel=tasks.panel,
        categories=tuple(shops.catalogue.notes["category"]),
        description=description,
    )


def _split_rule(options: WebShopOptions, goals: int) -> str:
    if options.splits == "released":
        return "released: one goal list a group (seed + group), so train and test overlap"
    return f"canonical: test = goals 0..{test_size(goals) - 1}, train = the rest without repetitions of test; disjoint"


__all__ = ["SPLITS", "suite"]

"""WebShop: a shop to search, browse and buy in, as text, with the texts, rankings, goals and rewards of the original.

Importing this registers ``WebShop-v0`` with Gymnasium.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.webshop.engine.nouns import extractor
from alignopsd_trl.environments.webshop.environment import WebShopEnvironment, WebShopFactory, open_shops
from alignopsd_trl.environments.webshop.options import WebShopOptions
from alignopsd_trl.environments.webshop.prompt import WebShopPrompt
from alignopsd_trl.environments.webshop.tasks import Tasks, split_rule

__all__ = ["WebShopEnvironment", "WebShopOptions", "WebShopPrompt", "suite"]

if "WebShop-v0" not in gymnasium.registry:
    gymnasium.register(id="WebShop-v0", entry_point="alignopsd_trl.environments.webshop.gym:WebShopGym")


def suite(**options: Any) -> Suite:
    """Makes WebShop with its tasks. Splits and panels: ``train`` and ``test``.

    Args:
        options: see `WebShopOptions`.

    Raises:
        DataError: on data that cannot be used.
        ValueError: on an unknown option, or a value that is not one of its choices.
    """
    chosen = WebShopOptions.of(options)
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
        "split_rule": split_rule(chosen, len(goals)),
        "data": "official files" if chosen.data_dir else "embedded catalogue",
        **chosen.described(),
    }
    return Suite(
        name="webshop",
        factory=WebShopFactory(chosen),
        tasks=tasks.dataset,
        panel=tasks.panel,
        categories=tuple(shops.catalogue.notes["category"]),
        description=description,
    )

"""Long episodes of the embedded WebShop: trips of several requests that must all be bought right.

Engine, pages, actions and scores are WebShop's own; see `alignopsd_trl.environments.webshop.trips` for the trips. Short
prompts, as in `alignopsd_trl.environments.webshop_tiny`.
"""

from __future__ import annotations

from typing import Any

from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.webshop import suite as webshop_suite
from alignopsd_trl.environments.webshop.environment import WebShopFactory, open_shops
from alignopsd_trl.environments.webshop.options import WebShopOptions
from alignopsd_trl.environments.webshop.trips import KINDS, TripEnvironment, TripTasks

OPTIONS: dict[str, Any] = {
    "template": "tiny",
    "results_per_page": 4,
    "history_length": 5,
    "max_turns": 30,
}


def suite(requests: int = 3, **options: Any) -> Suite:
    """Makes trips over the embedded catalogue.

    Args:
        requests (`int`, *optional*, defaults to 3): of a trip; 3 take a careful shopper 12 to 24 turns.
        options: of `alignopsd_trl.environments.webshop.suite`, with `OPTIONS` as defaults; the catalogue is the
        embedded one.

    Raises:
        ValueError: if ``requests`` is below 1, or an option is unknown or can't be set here.
    """
    fixed = sorted({"data_dir", "data_variant", "human_goals", "splits"} & set(options))
    if fixed:
        raise ValueError(f"{fixed[0]}={options[fixed[0]]!r} can't be set for trips; use the environment 'webshop'")
    if requests < 1:
        raise ValueError(f"requests={requests} must be at least 1")
    chosen = WebShopOptions.of(OPTIONS | options)
    tasks = TripTasks(open_shops(chosen), requests)
    return Suite(
        name="webshop_trips",
        factory=WebShopFactory(chosen, TripEnvironment),
        tasks=tasks.dataset,
        panel=tasks.panel,
        categories=KINDS,
        description={
            **webshop_suite(**OPTIONS | options).description,
            "environment": "webshop_trips",
            "requests": requests,
            "split_rule": "every fourth request is for testing, the others for training; trips drawn with a fixed seed",
        },
        skill_bank="webshop_trips",
    )

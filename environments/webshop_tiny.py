"""WebShop for a policy of a few million parameters: the embedded catalogue, short prompts, few results per page.

Engine, goals, actions and rewards are WebShop's own; `alignopsd_trl.environments.load("webshop_tiny")` only sets
options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from alignopsd_trl.environments import webshop
from alignopsd_trl.environments.base import Suite

OPTIONS: dict[str, Any] = {
    "template": "tiny",
    "observation": "text",
    "results_per_page": 4,
    "history_length": 5,
    "max_turns": 12,
}


def suite(**options: Any) -> Suite:
    """Makes WebShop's suite with `OPTIONS` as defaults."""
    return replace(webshop.suite(**OPTIONS | options), skill_bank="webshop")

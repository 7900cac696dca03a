"""The benchmarks that come with the package: what is said of each outside of its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Shipped:
    """A benchmark, whose code is the folder of its name, playable by hand with its ``__main__``.

    Args:
        title (`str`): in tables and figures.
        averages (`Mapping[str, str]`): averages that its tables show, and their headings.
        skill_prefix (`str`): of identifiers in its skill bank, as in ``web-g01``.
        variants (`tuple[str, ...]`): its suites; each is a module of that name.
    """

    title: str
    averages: Mapping[str, str]
    skill_prefix: str
    variants: tuple[str, ...]


BENCHMARKS = {
    "alfworld": Shipped("ALFWorld", {"success": "Avg"}, "alf", ("alfworld", "alfworld_tiny", "alfworld_pairs")),
    "searchqa": Shipped("Search-QA", {"success_macro": "Avg"}, "sqa", ("searchqa", "searchqa_tiny", "searchqa_hops")),
    "webshop": Shipped(
        "WebShop", {"score": "Score", "success": "Acc"}, "web", ("webshop", "webshop_tiny", "webshop_trips")
    ),
}

SHIPPED = tuple(variant for one in BENCHMARKS.values() for variant in one.variants)
"""Suites that `alignopsd_trl.environments.load` knows by name."""

"""Weights that come with the package or with another one, by name."""

from __future__ import annotations

from pathlib import Path

from alignopsd_trl.offline import OFFLINE_MODEL, smollm2

_DATA = Path(__file__).parents[1] / "data"
SHIPPED_MODELS = {
    "tiny": _DATA / "tiny_webshop",
    "tiny_trips": _DATA / "tiny_trips",
    "tiny_hops": _DATA / "tiny_hops",
    "tiny_alfworld": _DATA / "tiny_alfworld",
    "tiny_pairs": _DATA / "tiny_pairs",
    "tiny_searchqa": _DATA / "tiny_searchqa",
}


def resolve_model(name: str) -> str:
    """The path of a shipped model, by its key in `SHIPPED_MODELS`, or of ``"smollm2"``; any other name is a path or a
    hub id and is returned as it is.

    Raises:
        ValueError: for ``"smollm2"`` without its package.
    """
    if name == OFFLINE_MODEL:
        return str(smollm2())
    return str(SHIPPED_MODELS[name]) if name in SHIPPED_MODELS else name

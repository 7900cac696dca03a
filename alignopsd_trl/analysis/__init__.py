"""The paper's analyses of a run's records. Each is one function and one command with one figure and its data.

    from alignopsd_trl.analysis import spans, temporal
    temporal("outputs/webshop_tiny").save("figures")

``alignopsd analyse NAME RUN`` is the same from a shell.
"""

from __future__ import annotations

import importlib
from typing import Any

_FROM = {
    "Finding": "finding",
    "dynamics": "training_dynamics",
    "mechanism": "mechanistic",
    "spans": "mechanistic",
    "temporal": "temporal_mismatch",
    "thinking": "thinking_audit",
}


def __getattr__(name: str) -> Any:
    """Imports an analysis at its first use, since each needs matplotlib, which is an extra."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)

"""The paper's analyses of a run's records. Each is one function and one command with one figure and its data.

    from alignopsd_trl.commands.analysis import spans, temporal
    temporal("outputs/webshop_tiny").save("figures")

``alignopsd analyse NAME RUN`` is the same from a shell.
"""

from __future__ import annotations

import importlib
from typing import Any

ANALYSES = {
    "temporal": ("temporal_mismatch", "do corresponding decisions share timestamps?"),
    "thinking": ("thinking_audit", "similarity of thinking, and what a threshold leaves matched"),
    "spans": ("mechanistic", "lengths of decision spans by task"),
    "mechanism": ("mechanistic", "matches, spans over the divergence curve, gaps before and after"),
    "dynamics": ("training_dynamics", "reward, gaps, spans, weights over training; runs beside each other"),
}
"""Name of an analysis -> its module, and what it shows."""


def __getattr__(name: str) -> Any:
    """Imports an analysis at its first use, since each needs matplotlib, which is an extra."""
    if name not in ANALYSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{ANALYSES[name][0]}"), name)

"""The paper's analyses from records: each one function, one command, one figure, its data beside it.

    from alignopsd_trl.analysis import spans, temporal
    temporal("outputs/webshop_tiny").save("figures")

``alignopsd analyse NAME RUN`` is the same from a shell.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignopsd_trl.analysis.annotation import agreement, export_sheet, read_annotations
    from alignopsd_trl.analysis.finding import Finding
    from alignopsd_trl.analysis.mechanistic import mechanism
    from alignopsd_trl.analysis.option_sensitivity import sensitivity
    from alignopsd_trl.analysis.playing import play_siblings
    from alignopsd_trl.analysis.span_lengths import spans
    from alignopsd_trl.analysis.temporal_mismatch import temporal
    from alignopsd_trl.analysis.thinking_audit import thinking
    from alignopsd_trl.analysis.training_dynamics import dynamics

_FROM = {
    "agreement": "annotation",
    "dynamics": "training_dynamics",
    "export_sheet": "annotation",
    "Finding": "finding",
    "mechanism": "mechanistic",
    "play_siblings": "playing",
    "read_annotations": "annotation",
    "sensitivity": "option_sensitivity",
    "spans": "span_lengths",
    "temporal": "temporal_mismatch",
    "thinking": "thinking_audit",
}

__all__ = [
    "Finding", "agreement", "dynamics", "export_sheet", "mechanism", "play_siblings", "read_annotations",
    "sensitivity", "spans", "temporal", "thinking",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)

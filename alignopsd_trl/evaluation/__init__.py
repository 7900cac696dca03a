"""Plays a fixed panel with a policy and says how it went: success and score, per category, with 95 % intervals.

    python -m alignopsd_trl.evaluation --model PATH --environment webshop --panel test [--skills]

No trainer involved. The same panel (its checksum is in every result) on any machine; a trainer's own evaluations go
through the same loop, `play_panel`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignopsd_trl.evaluation.play import ModelGenerator, evaluate, evaluating, play_panel
    from alignopsd_trl.evaluation.summary import (
        Estimate,
        EvaluationResult,
        Outcome,
        mean_score,
        success_rate,
        summarise,
    )

_HOMES = {
    "Estimate": "summary",
    "EvaluationResult": "summary",
    "ModelGenerator": "play",
    "Outcome": "summary",
    "evaluate": "play",
    "evaluating": "play",
    "mean_score": "summary",
    "play_panel": "play",
    "success_rate": "summary",
    "summarise": "summary",
}

__all__ = [
    "Estimate",
    "EvaluationResult",
    "ModelGenerator",
    "Outcome",
    "evaluate",
    "evaluating",
    "mean_score",
    "play_panel",
    "success_rate",
    "summarise",
]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first asked for: the command line looks at its arguments before PyTorch is there."""
    if name not in _HOMES:
        raise AttributeError(f"module 'alignopsd_trl.evaluation' has no attribute {name!r}")
    return getattr(import_module(f"alignopsd_trl.evaluation.{_HOMES[name]}"), name)

"""Plays a fixed panel with a policy and says how it went: success and score, per category, with 95 % intervals.

    python -m alignopsd_trl.evaluation --model PATH --environment webshop --panel test [--skills]

No trainer involved. The same panel (its checksum is in every result) on any machine; a trainer's own evaluations go
through the same loop, `play_panel`.
"""

from alignopsd_trl.evaluation.play import ModelGenerator, evaluate, evaluating, play_panel
from alignopsd_trl.evaluation.summary import Estimate, EvaluationResult, Outcome, mean_score, success_rate, summarise

__all__ = [
    "Estimate", "EvaluationResult", "ModelGenerator", "Outcome", "evaluate", "evaluating", "mean_score", "play_panel",
    "success_rate", "summarise",
]  # fmt: skip

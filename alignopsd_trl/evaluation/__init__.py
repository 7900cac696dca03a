"""Plays a fixed panel (evaluation set) with a policy; reports success and score, per category, with 95 % intervals.

    python -m alignopsd_trl.evaluation --model PATH --environment webshop --panel test [--skills]

No trainer is involved. A panel is the same on every machine, and every result holds its checksum. A trainer's own
evaluations use the same loop, `play_panel`.
"""

from alignopsd_trl.evaluation.play import check_played, evaluate, play_panel
from alignopsd_trl.evaluation.summary import Estimate, EvaluationResult, Outcome, mean_score, success_rate, summarise

__all__ = [
    "Estimate", "EvaluationResult", "Outcome", "check_played", "evaluate", "mean_score", "play_panel",
    "success_rate", "summarise",
]  # fmt: skip

"""What the environment itself says about an action."""

from __future__ import annotations

from alignopsd_trl.turns import Turn


def feedback(turn: Turn) -> str | None:
    """Returns the turn's ``Step.info["feedback"]``; `None` where the environment gave none."""
    return turn.info.get("feedback")

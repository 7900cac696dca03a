"""Two functions that give the teacher a text for a turn: ``privileged="next_observation"`` and ``"feedback"``."""

from __future__ import annotations

from alignopsd_trl.turns import Turn


def next_observation(turn: Turn) -> str | None:
    """Tells the answer to the turn's action; `None` where there was no action or no answer. An environment that has
    better words for this than its observation gives them as ``Step.info["next_observation"]``."""
    answer = turn.info.get("next_observation", turn.observation)
    return f"After the action {turn.action} you will see: {answer}" if turn.action and answer else None


def feedback(turn: Turn) -> str | None:
    """Returns what the environment itself says of the action, ``Step.info["feedback"]``; `None` where it gave none."""
    return turn.info.get("feedback")

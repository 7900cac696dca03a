"""Episodes that nobody played."""

from __future__ import annotations

from alignopsd_trl.turns import NO_THOUGHT, Trajectory, Turn


def episode(rollout: str, reward: float, *steps: tuple[str, str]) -> Trajectory:
    """An episode from (action, answer) pairs; the first observation is ``start``."""
    found, before = Trajectory({"task_id": "t"}, "t", rollout, reward=reward, task_text="find it"), "start"
    for number, (action, answer) in enumerate(steps):
        turn = Turn(number, "", [1], [1], [2], "", NO_THOUGHT, action, True, answer, chosen_on=before)
        found.turns.append(turn)
        before = answer
    return found

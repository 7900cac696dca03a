"""What a sibling that ended better did in the same state."""

from __future__ import annotations

from collections.abc import Sequence

from alignopsd_trl.turns import Trajectory, Turn


def sibling_action(turn: Turn, trajectory: Trajectory, siblings: Sequence[Trajectory]) -> str | None:
    """Tells the action of the sibling with the largest reward that met the turn's state and ended better.

    States are those of `methods.state_credit.state_labels`, but siblings that opened differently share no first state.
    `None` where no such sibling ended better, or where all that met the state did the same. Of several actions of a
    sibling in one state the last one counts, which led on; of equal siblings the first.
    """
    state = _state(turn, trajectory)
    met = {id(one): _last(one, state) for one in siblings}
    better = [one for one in siblings if met[id(one)] and one.reward > trajectory.reward]
    actions = {action for action in met.values() if action} | {turn.action}
    if not better or len(actions) < 2:
        return None
    best = max(better, key=lambda one: one.reward)
    return f"In this situation a better attempt did: {met[id(best)]}"


def _state(turn: Turn, trajectory: Trajectory) -> tuple[bool, str]:
    return turn is trajectory.turns[0], turn.chosen_on


def _last(trajectory: Trajectory, state: tuple[bool, str]) -> str:
    """Returns a trajectory's last action in a state, empty if it did not meet it."""
    found = [turn.action for turn in trajectory.turns if _state(turn, trajectory) == state]
    return found[-1] if found else ""

"""What a sibling that ended better did in the same state."""

from __future__ import annotations

from collections.abc import Sequence

from alignopsd_trl.turns import Trajectory, Turn


def sibling_action(turn: Turn, trajectory: Trajectory, siblings: Sequence[Trajectory]) -> str | None:
    """Tells the action of the sibling with the largest reward that met the turn's state, if it ended better.

    States are those of `methods.state_credit.state_labels`, but siblings that opened differently share no first state.
    `None` where all that met the state did the same. Of several actions of a sibling in one state the last one counts,
    which led on; of equal siblings the first.
    """
    state = _state(turn, trajectory)
    met = [(one.reward, action) for one in siblings if (action := _last(one, state))]
    reward, action = max(met, key=lambda one: one[0], default=(trajectory.reward, ""))
    differ = {turn.action, *(one for _, one in met)}
    told = reward > trajectory.reward and len(differ) > 1
    return f"In this situation a better attempt did: {action}" if told else None


def _state(turn: Turn, trajectory: Trajectory) -> tuple[bool, str]:
    return turn is trajectory.turns[0], turn.chosen_on


def _last(trajectory: Trajectory, state: tuple[bool, str]) -> str:
    """Returns a trajectory's last action in a state, empty if it did not meet it."""
    return next((turn.action for turn in reversed(trajectory.turns) if _state(turn, trajectory) == state), "")

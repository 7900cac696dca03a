"""An episode while it is played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from alignopsd_trl.environments.base import Failure, Record, Step, View, Wishes
from alignopsd_trl.rollout.conversations import Conversation
from alignopsd_trl.turns import StopReason, Trajectory, Turn

TOO_LONG = "context_length_exceeded"


@dataclass
class Episode:
    """A trajectory that is being played, with the current observation and the history for the next prompt."""

    slot: int
    trajectory: Trajectory
    sampling_seed: int = 0
    observation: str = ""
    admissible: tuple[str, ...] = ()
    context: Any = None
    records: list[Record] = field(default_factory=list)
    dialogues: dict[int, tuple[Conversation, Conversation]] = field(default_factory=dict)  # see `Prompting`
    wishes: Wishes = Wishes(0, None)
    passed: int = 0  # requests that became no turn

    def view(self, history_length: int) -> View:
        shown = tuple(self.records[-history_length:]) if history_length > 0 else ()
        text, number = self.trajectory.task_text, len(self.records)
        return View(text, self.observation, self.admissible, shown, number, self.context)

    def advance(self, turn: Turn, step: Step, max_turns: int, until_lost: bool = False) -> None:
        turn.chosen_on, turn.observation, turn.reward = self.observation, step.observation, step.reward
        turn.action_valid = turn.action_valid and step.valid
        turn.metrics, turn.info = step.metrics, {**step.info, **step.metrics}
        self.records.append(Record(len(self.records) + 1, self.observation, turn.action, step.observation))
        self.observation, self.admissible = step.observation, step.admissible
        trajectory = self.trajectory
        trajectory.turns.append(turn)
        trajectory.reward += step.reward
        trajectory.won, trajectory.score = step.won, step.score
        if step.lost and trajectory.lost is None:
            trajectory.lost = len(trajectory.turns)
        if step.done:
            trajectory.stop = StopReason.DONE
        elif len(trajectory.turns) >= max_turns or (until_lost and step.lost):
            trajectory.stop = StopReason.TURN_LIMIT

    def pass_over(self, step: Step, stop: StopReason, limit: int) -> None:
        """Goes on after a request that became no turn."""
        self.observation, self.admissible, self.passed = step.observation, step.admissible, self.passed + 1
        self.trajectory.won = step.won
        if step.done:
            self.trajectory.stop = stop
        elif self.passed >= limit:
            self.trajectory.stop = StopReason.TURN_LIMIT

    def fail(self, failure: Failure, environment: str) -> None:
        self.trajectory.stop = StopReason.ENVIRONMENT_ERROR
        task = self.trajectory.row.get("task_id", self.trajectory.task)
        self.trajectory.message = f"{failure.kind}: environment {environment}, task {task!r}: {failure.message}"

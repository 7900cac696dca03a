"""Gives the turns of a round the texts of ``privileged``, on all processes alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alignopsd_trl.rollout.prompts import Renderer
from alignopsd_trl.runs.checkpoints import last_good
from alignopsd_trl.runs.health import RunStopped
from alignopsd_trl.skills.turn_source import PrivilegedError
from alignopsd_trl.skills.turn_texts import TurnTexts
from alignopsd_trl.training.checkpoints import Checkpoints
from alignopsd_trl.training.recorder import Recorder
from alignopsd_trl.turns import Trajectory


@dataclass(eq=False)
class Texts:
    """The teacher's texts of the turns of a round.

    Args:
        source: gives the texts of this process's turns; `None` where the teacher reads the skill bank.
        recorder: logs the share of turns with a text.
        checkpoints: save the weights from before the round if a text can't be made.
    """

    source: TurnTexts | None
    recorder: Recorder
    checkpoints: Checkpoints

    def give(self, trajectories: Sequence[Trajectory], renderer: Renderer, update: int) -> None:
        """Gives the turns their texts. A collective where there is a source.

        Raises:
            RunStopped: on all processes, with a checkpoint, if the source failed on one.
        """
        if self.source is None:
            return
        share, problem = 0.0, None
        try:
            share = self.source.give(trajectories, renderer)
        except PrivilegedError as error:
            problem = str(error)
        if problems := list(filter(None, self.recorder.processes.each(problem))):
            self.checkpoints.save_last(update)
            raise RunStopped(f"{problems[0]}; {last_good(self.checkpoints.output_dir)}")
        self.recorder.metrics("train", {"teacher/text_share": share})

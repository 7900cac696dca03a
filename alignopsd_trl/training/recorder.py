"""Records rounds: numbers for the log, samples and files of trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate.utils import gather_object
from transformers import PreTrainedTokenizerBase, TrainerCallback

from alignopsd_trl.common.files import full_disk_named, json_line
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.common.progress import cut
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Credit
from alignopsd_trl.records import TokenTexts, merge_types, record_schema, trace_types, turn_records, write_records
from alignopsd_trl.rollout.conversations import note_of_breaks
from alignopsd_trl.rollout.metrics import conversation_metrics, privileged_metrics, rollout_metrics
from alignopsd_trl.rollout.monte_carlo.replays import Replays
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.runs.files import TRAJECTORIES
from alignopsd_trl.runs.health import Decay
from alignopsd_trl.runs.state import RUN_FILE
from alignopsd_trl.training.console import show_note
from alignopsd_trl.training.order import round_ends
from alignopsd_trl.training.phases import Phases
from alignopsd_trl.turns import Trajectory, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainerLog


@dataclass(frozen=True)
class Round:
    """A played round with its credit.

    Attributes:
        number: number of rounds before it.
        update: number of optimiser steps before it.
        replays: opens the means to replay its episodes, while the weights are fixed. A collective.
    """

    number: int
    update: int
    trajectories: Sequence[Trajectory]
    batch: TurnBatch
    credit: Credit
    replays: Callable[[], AbstractContextManager[Replays]]


class RoundCallback(TrainerCallback):
    """A callback that a trainer also hands its rounds to, on every process, while the weights are fixed."""

    def listens(self, number: int) -> bool:
        """Returns whether it wants the round with this number (rounds before it)."""
        return True

    def on_round(self, args: AlignOPSDConfig, played: Round) -> Mapping[str, float]:
        """Returns numbers for the log."""
        return {}


GAP_OF_WON = "teacher/gap_of_won_turns"
LOST_GAP = 0.01  # nats a token that the gap of won turns lies below 0, and below the first rounds, before a warning
JUDGED = 2  # first rounds after which a followed teacher is judged


@dataclass(eq=False)
class Recorder:
    """Records rounds.

    Args:
        processes: of the run; logged numbers are means over them.
    """

    config: AlignOPSDConfig
    processes: ProcessGroup
    tokenizer: PreTrainedTokenizerBase
    log: TrainerLog

    def __post_init__(self) -> None:
        self._written: tuple[int, int] = (-1, 0)  # update and number of rounds recorded in it
        self._told = set[Callable[..., str | None]]()
        self._gaps: list[float] = []
        self._decays = {
            "privileged/success": Decay("privileged success", lambda first: first / 2),
            GAP_OF_WON: Decay("the gap of won turns", lambda first: min(first, 0.0) - LOST_GAP, digits=3),
        }

    def metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Logs the mean of each number over the processes, and returns these. A collective."""
        reduced = self.processes.reduce(metrics)
        for name, value in reduced.items():
            self.log.value(name, value)
        return reduced

    def record(self, played: Round, run_id: str | None, counters: Mapping[str, float]) -> None:
        ordinary, privileged = ([one for one in played.trajectories if one.privileged is own] for own in (False, True))
        found = rollout_metrics(ordinary) | played.credit.metrics | privileged_metrics(privileged) | gap_of_won(played)
        if self.config.history == "conversation":
            found |= conversation_metrics(played.trajectories)
            self._tell_once(note_of_breaks, played.trajectories, PlayOptions.of(self.config))
        logged = self.metrics(found | dict(counters))
        self._warn_of_teacher(logged)
        if played.number < JUDGED and played.credit.targets and self.config.distribution_rounds is None:
            self._gaps.append(logged.get(GAP_OF_WON, 0.0))
            self._tell_once(note_of_followed, self._gaps)
        self._tell_once(note_of_skills, played.trajectories)
        values = (played.credit.advantages.sum(1) / played.batch.policy_mask.sum(1).clamp(min=1)).tolist()
        first = [one.turns[0].row if one.turns else None for one in played.trajectories]
        self.log.samples("advantages", gather_object([0.0 if row is None else values[row] for row in first]))
        if self.config.save_trajectories:
            self._write(played, run_id)

    def _warn_of_teacher(self, logged: Mapping[str, float]) -> None:
        """Warns once where a teacher that moves with the policy gets worse."""
        kind = self.config.teacher_model_kind
        for name, decay in self._decays.items():
            problem = decay.problem(logged[name]) if name in logged and kind != "base" else None
            if problem:
                moves = f"the teacher moves with the policy (teacher_model_kind={kind!r})"
                show_note(f"{problem}: {moves}; 'base' stands still", self.processes.process)

    def _tell_once(self, note: Callable[..., str | None], *given: Any) -> None:
        """Prints a note of a round, the first one that there is."""
        if note not in self._told and (told := note(*given)):
            self._told.add(note)
            show_note(told, self.processes.process)

    def _write(self, played: Round, run_id: str | None) -> None:
        step, trace = played.update, dict(played.credit.trace)
        told = [turn.privileged_text for turn in played.batch.turns]
        trace |= {"privileged_text": told} if self.config.privileged is not None else {}
        records = turn_records(played.trajectories, step, trace, run_id, TokenTexts(self.tokenizer))
        schema = record_schema(merge_types(gather_object([trace_types(trace)])))
        file = self._file(step)
        with full_disk_named(self.config.output_dir, file.name):
            write_records(file, records, schema)

    def _file(self, step: int) -> Path:
        """Returns the next file of this process; an update may have several rounds."""
        count = self._written[1] + 1 if self._written[0] == step else 1
        self._written = step, count
        part = f"_round{count:03d}" if count > 1 else ""
        name = f"step_{step:06d}{part}_rank{self.processes.process:03d}.parquet"
        return Path(self.config.output_dir) / TRAJECTORIES / name


class SecondsOfRounds(TrainerCallback):
    """Logs the seconds of a round's phases with its last update."""

    def __init__(self, recorder: Recorder, phases: Phases, updates: int):
        self._recorder, self._phases, self._updates = recorder, phases, updates

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if round_ends(state, self._updates):
            spent = self._phases.take()
            self._recorder.metrics({f"seconds/{name}": value for name, value in spent.items()})


def note_of_skills(trajectories: Sequence[Trajectory]) -> str | None:
    """Returns a note that siblings have different skills, as those whose openings differ may have."""
    for one, other in pairwise(sorted(trajectories, key=lambda one: one.task)):
        if one.task == other.task and one.skill_text != other.skill_text and not one.failed and not other.failed:
            texts = f"{cut(one.skill_text, 60)!r} and {cut(other.skill_text, 60)!r}"
            return f"siblings of task {one.task!r} have different skills, {texts}, as their openings differ"
    return None


def note_of_followed(gaps: Sequence[float]) -> str | None:
    """Returns a note that a teacher, which an auxiliary loss follows, finds what won less likely than the policy does:
    in each of the first rounds, whose ``gaps`` of won turns are given."""
    if len(gaps) < JUDGED or max(gaps) > -LOST_GAP:
        return None
    less = -sum(gaps) / len(gaps)
    return (
        f"in each of the first {JUDGED} rounds the teacher found won turns less likely than the policy did ({less:.3f} "
        f"nats a token): it holds the policy back. distribution_rounds={JUDGED} leaves the other rounds to reward, "
        "method='grpo' all of them; docs/tune.md"
    )


def gap_of_won(played: Round) -> dict[str, float]:
    """Returns the mean over tokens of won episodes of the privileged view's log-prob less the policy's, in nats; empty
    where the method records no gaps or no episode with gaps is won."""
    gaps = played.credit.trace.get("token_identity_gaps")
    won = [turn.row for one in played.trajectories if one.won for turn in one.turns if turn.row is not None]
    found = [gaps[row] for row in won if gaps is not None and gaps[row] is not None]
    return {GAP_OF_WON: float(np.concatenate(found).mean(dtype=np.float64))} if found else {}


class LogFile(TrainerCallback):
    """Writes every logged number, one JSON object an update, to a file that a resumed run continues."""

    def __init__(self, path: Path):
        self._path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        if not (self._path.parent / RUN_FILE).is_file():  # an evaluation before there is a run
            return
        line = json_line({"step": state.global_step, **logs})
        with full_disk_named(self._path.parent, self._path.name), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

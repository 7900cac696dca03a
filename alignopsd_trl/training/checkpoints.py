"""Writes complete checkpoints, checks that weights are finite, and restores a resumed run's counts."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from alignopsd_trl.common import strategies
from alignopsd_trl.common.files import full_disk_named, readable_as_others, replacing, write_json
from alignopsd_trl.common.options import path_as_given
from alignopsd_trl.common.patched import patched
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.runs.files import TRAJECTORIES, record_sizes
from alignopsd_trl.runs.folder import TRAIN, RunFolder, claim_together
from alignopsd_trl.runs.health import FailedShare, RunStopped, weights_are_finite
from alignopsd_trl.runs.owned import begin, note
from alignopsd_trl.runs.provenance import configuration_of
from alignopsd_trl.runs.sizes import write_sizes
from alignopsd_trl.runs.state import LIST_FILE, MARK, PREFIX, STATE_FILE, is_whole, last_good, list_files, load_state
from alignopsd_trl.skills.turn_texts import PrivilegedError
from alignopsd_trl.training.phases import Phases, Seconds

if TYPE_CHECKING:
    from alignopsd_trl.training.trl_policy import TrainedPolicy

# Accelerate calls the device of each of several CPU processes cpu:0, and transformers loads the optimiser's state to
# that name; torch knows the device as cpu alone.
torch.serialization.register_package(
    5, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)


@dataclass(eq=False)
class Checkpoints(TrainerCallback):
    """Writes a run's own state into its checkpoints, and verifies that loss, gradients and weights are finite.

    Args:
        failed: share of failed episodes over the last rounds.
    """

    output_dir: Path
    processes: ProcessGroup
    policy: TrainedPolicy
    seconds: Seconds
    phases: Phases
    failed: FailedShare

    def __post_init__(self) -> None:
        self._loss_is_finite, self.run = True, ""
        self._resumed: tuple[int, str] | None = None  # update and folder's name

    def saw_loss(self, loss: torch.Tensor) -> None:
        self._loss_is_finite = self._loss_is_finite and bool(torch.isfinite(loss))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        """Verifies loss and gradient before the optimiser's step. A value that is not finite ends the run and leaves
        the weights unchanged."""
        norm = self.policy.gradient_norm()
        value = 0.0 if norm is None else norm
        finite, self._loss_is_finite = self._loss_is_finite and math.isfinite(value), True
        if self.processes.agree(int(not finite)):
            raise RunStopped(
                f"update {state.global_step + 1}: the loss or its gradient is not finite (gradient norm "
                f"{value:g}); nothing was changed or saved, and {last_good(self.output_dir)}. Look "
                "at this update's records for rewards out of range; lower learning_rate or set max_grad_norm"
            )

    def check_weights(self, update: int) -> None:
        """Raises `RunStopped` on all processes if the weights are not finite."""
        if self.processes.agree(int(not weights_are_finite(self.policy.model))):
            if self._resumed is not None and self._resumed[0] == update:
                told = f"the weights of {self._resumed[1]} are not finite: its file is damaged; remove this folder"
                raise RunStopped(f"{told} and resume from an earlier checkpoint, or copy it again", self._resumed[1])
            raise RunStopped(
                f"after update {update} the weights are not finite; they were not saved, and "
                f"{last_good(self.output_dir)}. Lower learning_rate or set max_grad_norm"
            )

    def folder(self, update: int) -> Path:
        return self.output_dir / f"{PREFIX}-{update}"

    def save_last(self, update: int) -> None:
        """Saves the weights from before the round, unless a checkpoint holds them."""
        if not self.processes.agree(int(is_whole(self.folder(update)))):
            self.policy.save_checkpoint()

    @contextlib.contextmanager
    def saved_if_down(self, update: int) -> Generator[None]:
        """Saves the weights from before the round if its environments or its sampler are down, or a teacher's text of a
        turn can't be made."""
        try:
            yield
        except (EnvironmentsDown, SamplerDown, PrivilegedError) as error:
            self.save_last(update)
            if isinstance(error, PrivilegedError):
                raise RunStopped(f"{error}; {last_good(self.output_dir)}") from error
            raise

    @contextlib.contextmanager
    def saving(self, update: int) -> Generator[None]:
        """Saves the run's own state before the body writes a checkpoint. The mark of a complete checkpoint is removed
        first and written last, before the list of its files."""
        self.check_weights(update)
        with full_disk_named(self.output_dir, self.folder(update).name):
            if self.processes.process == 0:
                for old in (MARK, LIST_FILE):
                    (self.folder(update) / old).unlink(missing_ok=True)
                phases, failed = dict(self.phases.total), self.failed.recent
                state = {"seconds": self.seconds.total["training"], "phases": phases, "failed": failed}
                records = record_sizes(self.output_dir, update)
                write_json(self.folder(update) / STATE_FILE, state | {"run": self.run, "records": records})
            self.processes.wait()
            yield
            if self.processes.process == 0:
                list_files(self.folder(update))

    def resume(self, run: RunFolder) -> None:
        """Restores the state that `saving` wrote into the checkpoint from which the run resumes, and removes what the
        run wrote after it."""
        self.run = run.id
        state = load_state(run.resume)
        self._resumed = None if run.resume is None else (run.update, Path(run.resume).name)
        self.seconds.resume(state.get("seconds", 0.0))
        self.phases.total.update(state.get("phases", {}))
        self.failed.recent = state.get("failed", [])
        run.forget_after(run.update)
        self.processes.wait()


@contextlib.contextmanager
def whole_model(trainer: Any, output_dir: str | None, internal: bool) -> Generator[str]:
    """Names the folder into which the body writes a trainer's model, and puts finite weights, whole files and the
    model's limits there. Checkpoints keep the form of the launch configuration.

    Args:
        output_dir: as `save_model` takes it; by default the trainer's.
        internal: whether transformers asks, for a checkpoint or at the end.
    """
    args = trainer.args
    if not weights_are_finite(trainer.model):
        raise RunStopped(f"the weights are not finite; they were not saved, and {last_good(args.output_dir)}")
    target, own = Path(output_dir or args.output_dir), Path(args.output_dir)
    checkpoint = internal and output_dir is not None
    whole = target == own and args.should_save  # without a mark at the end each file is replaced in one step
    with (
        full_disk_named(args.output_dir, "the model"),
        contextlib.nullcontext() if checkpoint else strategies.whole_state_dict(trainer.accelerator),
        patched(args, hub_token=None),  # transformers pickles its arguments beside the model
        replacing(target) if whole else contextlib.nullcontext(target) as place,
    ):
        yield str(place)
        if args.should_save:
            write_sizes(Path(place), vars(args))
            readable_as_others(Path(place))
        written = [target / one.name for one in Path(place).iterdir()] if whole else []
        begin(written, TRAIN)
    note(written, TRAIN)


@contextlib.contextmanager
def session(trainer: Any, resume: str | bool | None) -> Generator[RunFolder]:
    """Claims a trainer's output folder for this run alone while the context is open, and marks the run's end. A folder
    that the trainer has already stays its owner's.

    Raises:
        RunFolderError: if the folder is in use, or holds a run that this one does not continue.
    """
    if trainer.run_folder is not None:
        yield trainer.run_folder
        return
    args = trainer.args
    facts = configuration_of(args, trainer.train_dataset, model=trainer.model.config._name_or_path)
    folder = claim_together(args.output_dir, facts, resume, args.overwrite_output_dir, aside=True)
    trainer.run_folder = folder
    try:
        yield folder
        folder.end()
        if folder.writes and any(folder.path.glob(f"{TRAJECTORIES}/*.parquet")):
            print(f"where the credit went: alignopsd view {shlex.quote(path_as_given(folder.path))}", flush=True)
    finally:
        folder.release()
        trainer.run_folder = None

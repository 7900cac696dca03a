"""A trainer whose output folder is one run's: what it writes, how it resumes, and when it ends itself."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOTrainer

from alignopsd_trl import trl_compat
from alignopsd_trl.methods import Credit
from alignopsd_trl.policy import strategies
from alignopsd_trl.policy.token_texts import TokenTexts
from alignopsd_trl.records import merge_types, record_schema, trace_types, turn_records, write_records
from alignopsd_trl.rollout import (
    conversation_metrics,
    rollout_metrics,
)
from alignopsd_trl.runs.checkpoints import MARK, PREFIX, is_whole, last_good, load_state, save_state
from alignopsd_trl.runs.console import show_note, show_status
from alignopsd_trl.runs.files import full_disk_named
from alignopsd_trl.runs.folder import RunFolder, claim_together, configuration_of
from alignopsd_trl.runs.health import RunStopped, weights_are_finite
from alignopsd_trl.runs.order import EpochSampler
from alignopsd_trl.runs.trackers import send_table, table_rows
from alignopsd_trl.turns import Trajectory, TurnBatch


class RunKeeping(GRPOTrainer):
    """A trainer that keeps its run: it claims the folder, resumes exactly, saves whole files, and stops at numbers
    that are not finite."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The last look before the optimiser's step: a loss or a gradient that is not finite ends the run here, with
        the weights as they were. A loss scaler (float16) skips such steps by itself."""
        norm = super()._get_grad_norm(model, grad_norm)
        value = 0.0 if norm is None or getattr(self.accelerator, "scaler", None) is not None else float(norm)
        finite, self._loss_is_finite = self._loss_is_finite and math.isfinite(value), True
        if self.processes.agree(int(not finite)):
            raise RunStopped(
                f"update {self.state.global_step + 1}: the loss or its gradient is not finite (gradient norm "
                f"{value:g}); nothing was changed or saved, and {last_good(self.args.output_dir)}. Look "
                "at this update's records for rewards out of range; lower learning_rate or set max_grad_norm"
            )
        return norm

    def _check_weights(self) -> None:
        if self.processes.agree(int(not weights_are_finite(self.model))):
            raise RunStopped(
                f"after update {self.state.global_step} the weights are not finite; they were not saved, and "
                f"{last_good(self.args.output_dir)}. Lower learning_rate or set max_grad_norm"
            )

    @property
    def run_id(self) -> str | None:
        return self.run_folder.id if self.run_folder is not None else None

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds of the run so far, over all its sessions: ``training`` and ``evaluation``. What a session did
        after its last checkpoint is done again and counts once."""
        if self._began is None:
            return dict(self._seconds)
        return self._seconds | {"training": self._seconds["training"] + self._since_began()}

    def _since_began(self) -> float:
        evaluated = self._seconds["evaluation"] - self._evaluated_before
        return time.perf_counter() - self._began - evaluated

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As in [`~transformers.Trainer`], in an output folder that belongs to this run alone.

        ``True`` resumes from the last checkpoint that was written to its end, and starts at the beginning if there is
        none. A run that has ended trains nothing more.

        Raises:
            RunFolderError: if the folder is in use, or holds a run that this one does not continue.
            RunStopped: if the run can't go on: no usable episodes, or numbers that are not finite.
            RewardError: for a reward that is no finite number.
        """
        borrowed = self.run_folder is not None
        if not borrowed:
            self.run_folder = claim_together(
                self.args.output_dir,
                configuration_of(self.args, self.train_dataset, model=self.model.config._name_or_path),
                resume_from_checkpoint,
                self.args.overwrite_output_dir,
                aside=True,
            )
        try:
            self._begin(self.run_folder)
            done = super().train(resume_from_checkpoint=self.run_folder.resume, **kwargs)
            if not borrowed:
                self.run_folder.end()
            return done
        finally:
            self.close()
            self._seconds, self._began = self.seconds, None
            if not borrowed:
                self.run_folder.release()
                self.run_folder = None

    def _begin(self, run: RunFolder) -> None:
        """Takes up what the checkpoint knows and takes back what was written beyond it."""
        state = load_state(run.resume)
        self._seconds["training"] = state.get("seconds", 0.0)
        self.phases.total.update(state.get("phases", {}))
        self._failed_share.recent = state.get("failed", [])
        run.forget_after(run.update)
        self.accelerator.wait_for_everyone()

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        self._sampler = EpochSampler.like(super()._get_train_sampler(dataset))
        return self._sampler

    def _run_epoch(self, *, epoch: int, **kwargs: Any) -> None:
        """An epoch of a run that has made all its updates is none: a finished run that is resumed trains nothing."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        if self._sampler is not None:
            self._sampler.epoch = epoch
        super()._run_epoch(epoch=epoch, **kwargs)

    def _save_last(self) -> None:
        """A checkpoint of the weights as the round began, unless there is one."""
        if not self.processes.agree(int(is_whole(self._checkpoint()))):
            self._save_checkpoint(self.model, trial=None)

    def _checkpoint(self) -> Path:
        return Path(self.args.output_dir) / f"{PREFIX}-{self.state.global_step}"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As in TRL. The mark of a whole checkpoint goes first, if it is written again, and comes last."""
        self._check_weights()
        with full_disk_named(self.args.output_dir, self._checkpoint().name):
            self._write_checkpoint(model, trial)

    def _write_checkpoint(self, model: Any, trial: Any) -> None:
        if self.is_world_process_zero():
            (self._checkpoint() / MARK).unlink(missing_ok=True)
            phases, failed = dict(self.phases.total), self._failed_share.recent
            save_state(self._checkpoint(), {"seconds": self.seconds["training"], "phases": phases, "failed": failed})
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        """Every process's own files are there before the first process writes the mark."""
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in [`~transformers.Trainer`], but the model is always written whole; checkpoints keep the form that the
        launch configuration gives them.

        Raises:
            RunStopped: if the weights are not finite; they are not saved.
        """
        if not weights_are_finite(self.model):
            raise RunStopped(f"the weights are not finite; they were not saved, and {last_good(self.args.output_dir)}")
        checkpoint = _internal_call and output_dir is not None
        whole = contextlib.nullcontext() if checkpoint else strategies.whole_state_dict(self.accelerator)
        with full_disk_named(self.args.output_dir, "the model"), whole:
            super().save_model(output_dir, _internal_call)

    def _log_round(self, trajectories: list[Trajectory], batch: TurnBatch, credit: Credit, step: int) -> None:
        self._log_metrics("train", rollout_metrics(trajectories) | credit.metrics)
        if self.args.history == "conversation":
            self._log_metrics("train", conversation_metrics(trajectories))
            self._tell_of_breaks(trajectories)
        self._log_metrics("train", self._environment_counters.take())
        self._log_metrics("train", {f"seconds/{name}": value for name, value in self.phases.take().items()})
        means = credit.advantages.sum(1) / batch.policy_mask.sum(1).clamp(min=1)
        place = {id(turn): row for row, turn in enumerate(batch.turns)}
        first = [place.get(id(one.turns[0])) if one.turns else None for one in trajectories]
        values = means.tolist()
        shown = gather_object([0.0 if row is None else values[row] for row in first])
        trl_compat.log_samples(self, "advantages", shown)
        if self.args.tracked_trajectories and self.is_world_process_zero():
            columns = {"credit": values} | {
                name: credit.trace[name] for name in ("weight", "span") if name in credit.trace
            }
            of_turns = {key: {name: column[row] for name, column in columns.items()} for key, row in place.items()}
            rows = table_rows(trajectories, of_turns, step, self.args.tracked_trajectories)
            send_table(rows, step, self.args.report_to, self.callback_handler.callbacks)
        if self.args.save_trajectories:
            tokens = self.args.record_tokens
            trace = {name: kept for name, kept in credit.trace.items() if tokens or not name.startswith("token_")}
            texts = TokenTexts(self.processing_class) if tokens else None
            self._write_records(turn_records(trajectories, step, batch, trace, self.run_id, texts), trace, step)

    def _tell_of_breaks(self, trajectories: Sequence[Trajectory]) -> None:
        """Once, what to do where the chat template keeps dialogues from being rows."""
        later = [(one, two) for played in trajectories for one, two in pairwise(played.turns)]
        broken = sum(not two.extends(one) and not two.history_shortened for one, two in later)
        if broken and not self._told_of_breaks and self.args.past_thinking == "template":
            self._told_of_breaks = True
            if self.is_world_process_zero():
                show_note(
                    f"past_thinking='keep' would save rows: the chat template rewrites past responses in {broken} of "
                    f"{len(later)} prompts (docs/conversations.md)"
                )

    def _write_records(self, records: list[dict[str, Any]], trace: Mapping[str, Any], step: int) -> None:
        count = self._written[1] + 1 if self._written[0] == step else 1  # several rounds make up an update if they must
        self._written = step, count
        part = f"_round{count:03d}" if count > 1 else ""
        name = f"step_{step:06d}{part}_rank{self.accelerator.process_index:03d}.parquet"
        schema = record_schema(merge_types(gather_object([trace_types(trace)])))
        with full_disk_named(self.args.output_dir, name):
            write_records(Path(self.args.output_dir) / "trajectories" / name, records, schema)

    def _log_metrics(self, mode: str, metrics: Mapping[str, float]) -> None:
        for name, value in self.processes.reduce(metrics).items():
            trl_compat.log_value(self, mode, name, value)

    def _show_phase(self, name: str) -> None:
        if not self.args.disable_tqdm and self.is_local_process_zero() and name != "rollout":
            show_status(f"update {self.state.global_step + 1}/{self.state.max_steps}: {name.replace('_', ' ')}")

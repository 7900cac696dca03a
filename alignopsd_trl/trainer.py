"""AlignOPSDTrainer plays rounds of episodes, gives their turns credit and lets TRL update on them.

It is the one class that extends TRL's trainer; `scoring.trl_trainer.OVERRIDES` lists its overrides. It delegates to
parts (`training.parts`): `rollouts` play, `rewards` reward, the `scorer` scores, the method assigns credit, `row_maker`
makes TRL's rows, the `recorder` records, and `checkpoints` save the run. None holds the trainer; they use its policy
(`TrainedPolicy`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.checks.trainer import to_evaluate
from alignopsd_trl.checks.unread import not_read
from alignopsd_trl.common import strategies
from alignopsd_trl.common.files import plain
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.methods import Method, checked_credit
from alignopsd_trl.results.hub import push_checkpoint, push_model, write_card
from alignopsd_trl.results.summary import EvaluationResult
from alignopsd_trl.rollout.monte_carlo.replays import Replays, with_advantages
from alignopsd_trl.runs.folder import RunFolder
from alignopsd_trl.sampling.backend import Backend, Snapshot
from alignopsd_trl.sampling.trl_engine import EngineBackend, OwnBackend
from alignopsd_trl.skills import SkillSpec
from alignopsd_trl.skills.turn_texts import PrivilegedError, SourceSpec
from alignopsd_trl.training.checkpoints import session, whole_model
from alignopsd_trl.training.console import show_note
from alignopsd_trl.training.order import EpochSampler
from alignopsd_trl.training.parts import Parts, callbacks_of, check_loaded, make_parts, settle_arguments
from alignopsd_trl.training.recorder import Round, RoundCallback
from alignopsd_trl.training.rollouts import Rollouts, ToPlay
from alignopsd_trl.training.trl_construction import made_for_turns, with_own_adapter
from alignopsd_trl.turns import Trajectory

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer as GRPOTrainer
else:
    from trl import GRPOTrainer


class AlignOPSDTrainer(GRPOTrainer):
    """Trains a language agent over many turns with outcome-grounded credit per turn.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            Policy: a hub id, a path, a model, or a shipped policy: ``"tiny"`` (for ``webshop_tiny``),
            ``"tiny_trips"``, ``"tiny_alfworld"``, ``"tiny_pairs"``, ``"tiny_searchqa"`` or ``"tiny_hops"``. The folder
            of a LoRA run is loaded on its base, and its adapter goes on training, without a ``peft_config``.
        args ([`AlignOPSDConfig`]):
            Configuration. Batch sizes count trajectories.
        environment_factory (`Callable[[], TextEnvironment]` or one of TRL's convention): Makes one environment, without
            arguments. If it has a method ``batch(size, time_limit)``, that is used. A class that was written for
            [`~trl.GRPOTrainer`] (tools as methods), or a dict of such classes chosen by the column ``environment``, is
            played through [`~alignopsd_trl.environments.adapters.ToolEnvironment`].
        train_dataset ([`~datasets.Dataset`]): One row per task, with a ``task_id``; every column is passed to
            ``reset``. TRL's classes need no ``task_id``, and no dataset if `reset` gives the prompt and ``max_steps``
            is set.
        eval_dataset ([`~datasets.Dataset`], *optional*): Rows of the same form for `evaluate`.
        skill_bank (`str`, path, [`SkillBank`] or callable, *optional*):
            Privileged text; needed by methods with a teacher. A shipped bank's name, the path of a JSON file, a column
            of the dataset (hints, reference solutions, past trajectories), or a function ``(task_text, row) -> str`` or
            ``(task_text, task_key, data_source) -> str``.
        privileged (`str` or callable, *optional*):
            As [`AlignOPSDConfig`]'s field of this name, or the function itself: the teacher's text of a turn, known
            after play, in place of the skill bank's.
        encoder (`str` or callable, *optional*):
            ``"lexical"``, a sentence-transformers id or path, or a callable ``list[str] -> (n, D)``; needed by methods
            that compare thinking.
        reward_funcs (*optional*):
            Further terms of the terminal reward, in TRL's convention, called with ``trajectory=[...]`` beside the
            dataset's columns, on the episodes that their environment did not fail. One finite number each, or `None`
            where a function does not apply; anything else ends the run.
        tools (`list[Callable]`, *optional*):
            Functions that TRL's classes get beside their own, or alone.
        processing_class: As in [`~trl.GRPOTrainer`], as are `callbacks`, `optimizers`, `quantization_config` and
            `peft_config`.

    Raises:
        TypeError: for a config of another class or a missing factory.
        ValueError: for combinations that can't be met; the message names the argument, its value and the remedy.
    """

    _tag_names = ["trl", "align-opsd"]

    def __init__(
        self,
        model: str | PreTrainedModel,
        args: AlignOPSDConfig | None = None,
        environment_factory: Callable[[], Any] | dict[str, Callable[[], Any]] | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        skill_bank: SkillSpec | None = None,
        encoder: str | Callable[[list[str]], Any] | None = None,
        reward_funcs: Callable | list[Callable] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: list[Callable] | None = None,
        privileged: SourceSpec | None = None,
    ):
        run, eval_dataset, functions, reward_check = settle_arguments(
            model,
            args,
            environment_factory,
            train_dataset,
            eval_dataset,
            skill_bank,
            encoder,
            reward_funcs,
            privileged,
            tools,
            has_tokenizer=processing_class is not None,
            quantization=quantization_config,
            adapter=peft_config,
        )
        self.check_run(run)
        self.method, self.environment_factory, self.privileged = run.method, run.factory, run.privileged
        given = run.model, run.args, processing_class, quantization_config, peft_config
        loaded, processing_class = with_own_adapter(*given)
        adapted = loaded is not run.model
        with made_for_turns(run.args, isinstance(loaded, str), adapted):
            super().__init__(
                model=loaded,
                reward_funcs=functions,
                args=run.args,
                train_dataset=run.tasks,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=None if adapted else quantization_config,
                peft_config=peft_config,
            )
        self.processes = check_loaded(self)
        self.run_folder: RunFolder | None = None
        self.evaluations: dict[str, dict[str, Any]] = {}
        self._hold(make_parts(self, run.skill_bank, run.encoder, reward_check))

    def _hold(self, parts: Parts) -> None:
        self.skill_bank, self.encoder, self.teacher_weights = parts.skill_bank, parts.encoder, parts.teacher_weights
        self.backend, self.samplers, self.rollouts = parts.backend, parts.samplers, parts.rollouts
        self.rewards, self.texts, self.scorer = parts.rewards, parts.texts, parts.scorer
        self.row_maker, self.update, self.panels = parts.row_maker, parts.update, parts.panels
        self.phases, self.recorder, self.checkpoints = parts.phases, parts.recorder, parts.checkpoints
        for quiet in (PrinterCallback, ProgressCallback):
            self.remove_callback(quiet)
        for callback in callbacks_of(parts):
            self.add_callback(callback)

    def check_run(self, run: Intended) -> None:
        """Checks a run before its weights are loaded, and says which settings it does not read. A caller that has done
        both overrides it."""
        check(run)
        if told := not_read(run):
            show_note(told)

    def make_backend(self) -> Backend:
        """Makes the decoding back end, once: vLLM through TRL, or the package's own loop. Override it to use another
        one for rollouts and evaluations."""
        return EngineBackend(self, self.processes) if self.use_vllm else OwnBackend(self)

    def make_rollouts(self, **parts: Any) -> Rollouts:
        """Makes the part that plays episodes, once. Override it to play them otherwise."""
        return Rollouts(**parts)

    # A round

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Plays a round of whole sibling groups and returns TRL's rows. Every process makes the same calls."""
        number, update, method = self._round, self.state.global_step, self._present
        self.checkpoints.check_weights(update)
        with self.checkpoints.saved_if_down(update), self.samplers.snapshot() as snapshot:
            with self.phases("rollout"):
                trajectories = self._play(inputs, snapshot)
            replays = partial(self._replays, snapshot)
            with self.phases("credit"):
                teacher = self.scorer.teacher(snapshot, self.rollouts.reader, method.kept_logits > 0)
                batch = self.scorer.batch(trajectories, method, snapshot)
                self.recorder.metrics(self.scorer.self_check(batch, teacher, method, snapshot.prefixes))
                if method.needs_turn_advantages:
                    with replays() as walked:
                        batch = with_advantages(batch, trajectories, walked, method.options.walks)
                credit = checked_credit(method, batch, teacher, number)
                rows = self.row_maker.rows(batch, credit, method.policy_weight)
            played = Round(number, update, trajectories, batch, credit, replays)
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, RoundCallback) and callback.listens(number):
                    self.recorder.metrics(callback.on_round(self.args, played))
        self.recorder.record(played, self.run_id, self.rollouts.take_counters())
        return rows

    def _play(self, inputs: list[dict[str, Any]], snapshot: Snapshot) -> list[Trajectory]:
        """Plays a round's episodes, rewards them, and gives their turns the teacher's texts."""
        update = self.state.global_step
        trajectories = self.rollouts.play(self._to_play(inputs, update, snapshot))
        self.rewards.give(inputs, trajectories, update)
        if self.texts is not None:
            renderer = self.rollouts.training_player(snapshot.sampler, self._present).renderer
            give = partial(self.texts.give, trajectories, renderer)
            share = self.processes.together(give, PrivilegedError)
            self.recorder.metrics({"teacher/text_share": share})
        return trajectories

    def _to_play(self, rows: list[dict[str, Any]], update: int, snapshot: Snapshot) -> ToPlay:
        siblings = self.args.privileged_siblings
        teacher, hand_over = (snapshot.teacher, snapshot.hand_over) if siblings else (None, None)
        return ToPlay(rows, update, self.state.max_steps, snapshot.sampler, self._present, siblings, teacher, hand_over)

    @contextlib.contextmanager
    def _replays(self, snapshot: Snapshot) -> Generator[Replays]:
        """Opens the environments and the policy for further rollouts from a round's states."""
        with self.phases("walks"):
            yield self.rollouts.replays(snapshot.sampler, self._present, self._round)

    @property
    def _round(self) -> int:
        """Number of rollout rounds before this one, which a method's schedules count."""
        return self.state.global_step // self.args.steps_per_round

    @property
    def _present(self) -> Method:
        return self.method.at(self._round)

    # The update

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        strategies.keep_gradients_sharded(self.accelerator, self.model_wrapped)
        self.checkpoints.seconds.begin()
        with self.phases("update"):
            loss = super().training_step(*args, **kwargs)
            self.checkpoints.saw_loss(loss)
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Computes TRL's loss in sub-chunks of ``tokens_per_forward``: memory does not grow with the number of
        turns."""
        if return_outputs:
            raise ValueError("AlignOPSDTrainer does not return outputs")
        return self.update.loss(model, inputs)

    # Evaluation

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Plays the rows of a dataset as a panel, ``num_generations_eval`` times each. The loader's batches do not
        count, and there is no loss to report."""
        self.callback_handler.eval_dataloader = dataloader
        self.model.eval()  # tells TRL's log whose line is next; each training step sets the mode anew
        prefix = kwargs.get("metric_key_prefix", "eval")
        name = f"{description.lower()} {prefix.partition('_')[2]}".rstrip()
        rows = [*to_evaluate(dataloader.dataset, self.environment_factory, name)]
        played = [row for row in rows for _ in range(self.num_generations_eval or 1)]
        found = self.panels.metrics(played, name, self.method.skills_in_evaluation, self.args.eval_temperature)
        nothing: Any = None
        return EvalLoopOutput(nothing, nothing, {f"{prefix}_{key}": found[key] for key in found}, len(rows))

    def evaluate_panel(
        self, panel: TaskPanel, skills: bool = False, temperature: float | None = None, seed: int = 0
    ) -> EvaluationResult:
        """Plays a panel (evaluation set) once with the current policy, split over all processes.

        Args:
            skills: whether the policy's own prompt holds the skill (the starred rows).
            temperature: of sampling; the config's ``eval_temperature`` by default.
            seed: of the sampling's random numbers; the random state of training stays unchanged.

        Returns:
            The panel's result, equal on every process.
        """
        temperature = self.args.eval_temperature if temperature is None else temperature
        if skills and self.skill_bank is None:
            raise ValueError("skills=True needs a skill_bank")
        result = self.panels.evaluate(panel, skills, temperature, seed)
        self.evaluations["after" if self.state.global_step else "before"] = plain(result.to_dict(outcomes=False))
        return result

    # The run

    @property
    def run_id(self) -> str | None:
        return self.run_folder.id if self.run_folder is not None else None

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds of the run so far, over all its sessions: ``training`` and ``evaluation``. Work after a
        session's last checkpoint is repeated and counts once."""
        return self.checkpoints.seconds.total

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Trains as [`~transformers.Trainer`] does, in an output folder that belongs to this run alone.

        ``True`` resumes from the last complete checkpoint, and starts at the beginning if there is none. A run that has
        ended trains nothing more.

        Raises:
            RunFolderError: if the folder is in use, or holds a run that this one does not continue.
            RunStopped: if the run can't go on: no usable episodes, or numbers that are not finite.
            RewardError: for a reward that is no finite number.
        """
        with session(self, resume_from_checkpoint) as folder:
            try:
                self.checkpoints.resume(folder)
                return super().train(folder.resume, trial, ignore_keys_for_eval)
            finally:
                self.close()
                self.checkpoints.seconds.end()

    def close(self) -> None:
        """Closes the environments and the connections to servers; the next round or evaluation opens new ones. Training
        calls it at its end; the trainer's deletion closes the rest."""
        self.samplers.close()  # first, since calls under way end with their connections
        self.rollouts.close()

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        self._order = EpochSampler.like(super()._get_train_sampler(dataset))
        rows: Any = self._order.data_source
        if self.args.spread_categories and "category" in rows.column_names:
            self._order.kinds = rows["category"]
        return self._order

    def _run_epoch(self, model: Any, epoch: int, *args: Any, **kwargs: Any) -> None:
        """Sets the epoch of the task order. A resumed run that has made all its updates trains nothing."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        self._order.epoch = epoch
        super()._run_epoch(model, epoch, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Saves the run's own state, then TRL's checkpoint."""
        with self.checkpoints.saving(self.state.global_step):
            super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves random states and waits for all processes before the first one writes the mark of a complete
        checkpoint."""
        super()._save_rng_state(output_dir)
        self.processes.wait()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warns of weights that a checkpoint lacks; tied ones stand there once, under another name."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves as [`~transformers.Trainer`] does, but always the whole model; checkpoints keep the form of the launch
        configuration.

        Raises:
            RunStopped: if the weights are not finite; they are not saved.
        """
        with whole_model(self, output_dir, _internal_call) as place:
            super().save_model(place, _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    # Sharing

    def create_model_card(
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        licence: str | None = None,
    ) -> None:
        """Writes ``README.md`` into the output folder: model, tasks and results, as far as this trainer knows them.
        Call `evaluate_panel` before the first update and after the last, and the card has both.

        Args:
            model_name: title of the card; the repository's or the folder's name by default.
            dataset_name, tags: of TRL's signature, unused; the card names the environment and the method instead.
            licence: licence id of the weights.
        """
        if self.is_world_process_zero():
            write_card(self, model_name, licence)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: Any,
    ) -> Any:
        """Pushes as [`~transformers.Trainer`] does, but model, tokenizer, card and results alone, in one commit.

        Raises:
            PushFailed: if the Hub refused or could not be reached; the model is in the output folder.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        given = {"token": token, "private": private, "revision": revision}
        return push_model(self, commit_message, blocking, card, **given)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Pushes a checkpoint's model during training (``hub_strategy``). A failed push does not end the run."""
        if self.is_world_process_zero() and self.args.hub_strategy != "end":
            push_checkpoint(self, checkpoint_folder)

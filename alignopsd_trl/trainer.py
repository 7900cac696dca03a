"""AlignOPSDTrainer plays rounds of episodes, gives their turns credit and lets TRL update on them.

It is the one class that extends TRL's trainer; `scoring.trl_trainer.OVERRIDES` lists its overrides. It delegates to
objects that it holds: `rollouts` play, `rewards` reward, the `scorer` scores, the method assigns credit, `row_maker`
makes TRL's rows, the `recorder` records, and `checkpoints` save the run. None holds the trainer; they use its policy
(`TrainedPolicy`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from alignopsd_trl.checks.compatibility import adapted, check_rewarded, is_adapted, to_evaluate
from alignopsd_trl.checks.intended import Intended, check
from alignopsd_trl.checks.model_files import beyond_positions, check_architecture
from alignopsd_trl.checks.quantised import check_quantised, settle_quantised
from alignopsd_trl.checks.rewards import RewardCheck
from alignopsd_trl.checks.settings import changes_nothing
from alignopsd_trl.checks.trainer import check_tokenizer, shares_prefixes, weights_of_rewards
from alignopsd_trl.common import strategies
from alignopsd_trl.common.cores import use_what_is_left
from alignopsd_trl.common.files import full_disk_named, plain, readable_as_others, replacing, write_text
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.options import as_mapping, path_as_given
from alignopsd_trl.common.patched import patched
from alignopsd_trl.common.process_group import ProcessGroup
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.experimental.rounds_ahead import RolloutsAhead
from alignopsd_trl.experimental.server import ServerBackend
from alignopsd_trl.methods import checked_credit, get_method
from alignopsd_trl.results.card import model_card
from alignopsd_trl.results.facts import trainer_results
from alignopsd_trl.results.hub import OF_A_MODEL, OF_A_RUN, PushFailed, push_files
from alignopsd_trl.results.summary import EvaluationResult
from alignopsd_trl.rollout.episode import no_skills
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.rollout.reading import require_tools
from alignopsd_trl.rollout.sampler import SamplerDown
from alignopsd_trl.rollout.trial import check_template, notes_of
from alignopsd_trl.runs.checkpoints import last_good
from alignopsd_trl.runs.configuration import configuration_of
from alignopsd_trl.runs.folder import LOG_FILE, TRAIN, RunFolder, claim_together
from alignopsd_trl.runs.health import FailedShare, RunStopped, weights_are_finite
from alignopsd_trl.runs.owned import begin, note, owned
from alignopsd_trl.runs.sizes import write_sizes
from alignopsd_trl.sampling.backend import Backend
from alignopsd_trl.sampling.plain import tell_left_out
from alignopsd_trl.sampling.snapshot import Samplers, Snapshot
from alignopsd_trl.sampling.trl_engine import ColocatedBackend, EngineBackend, push_weights, sampling_options
from alignopsd_trl.sampling.trl_loop import OwnBackend
from alignopsd_trl.scoring.teacher import PrivilegedTeacher
from alignopsd_trl.scoring.teacher_weights import FollowingTeacher, TeacherWeights
from alignopsd_trl.scoring.trl_scoring import PolicyScorer
from alignopsd_trl.skills import CONTEXT, SkillSpec, load_skills, skill_source
from alignopsd_trl.skills.turn_source import PrivilegedError, SourceSpec, load_source
from alignopsd_trl.skills.turn_texts import TurnTexts
from alignopsd_trl.training.checkpoints import Checkpoints
from alignopsd_trl.training.console import Lines, show_note
from alignopsd_trl.training.log import LogFile
from alignopsd_trl.training.loss import Drift, Update
from alignopsd_trl.training.order import EpochSampler, Upcoming, WholeRounds
from alignopsd_trl.training.panels import Panels
from alignopsd_trl.training.phases import Phases, Seconds, Status
from alignopsd_trl.training.recorder import Recorder, SecondsOfRounds
from alignopsd_trl.training.rewards import Rewards, environment_reward
from alignopsd_trl.training.rollouts import Rollouts, ToPlay
from alignopsd_trl.training.round import Listener, Replays, Round
from alignopsd_trl.training.scorer import Scorer
from alignopsd_trl.training.trl_construction import initial_weights, loaded_whole, made_for_turns, without_noise
from alignopsd_trl.training.trl_policy import TrainedPolicy, TrainerLog
from alignopsd_trl.training.turn_rows import RowMaker
from alignopsd_trl.turns import Trajectory, TurnBatch

if TYPE_CHECKING:
    from alignopsd_trl.scoring.trl_trainer import Trainer as GRPOTrainer
else:
    from trl import GRPOTrainer

logger = logging.getLogger(__name__)


class AlignOPSDTrainer(GRPOTrainer):
    """Trains a language agent over many turns with outcome-grounded credit per turn.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            Policy: a hub id, a path, a model, or a shipped policy: ``"tiny"`` (for ``webshop_tiny``),
            ``"tiny_trips"``, ``"tiny_alfworld"``, ``"tiny_pairs"``, ``"tiny_searchqa"`` or ``"tiny_hops"``.
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
        model = resolve_model(model) if isinstance(model, str) else model
        args = args if args is not None else AlignOPSDConfig(f"{Path(str(model)).name}-AlignOPSD")
        if not isinstance(args, AlignOPSDConfig):
            raise TypeError(f"args must be an AlignOPSDConfig, got {type(args).__name__}")
        if args.device.type == "cpu" and (told := use_what_is_left()):
            show_note(told)
        chosen = args.privileged if privileged is None else privileged
        self.privileged = None if chosen is None else load_source(chosen)
        args.privileged = None if self.privileged is None else self.privileged.name
        self.method = get_method(args.method)(args)
        self._factory, train_dataset, eval_dataset = adapted(
            environment_factory, tools, train_dataset, eval_dataset, args
        )
        columns = getattr(train_dataset, "column_names", None) or ()
        if skill_bank is None and chosen is None and CONTEXT in columns:
            skill_bank = CONTEXT
        extra = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        check_rewarded(self._factory, extra)
        args.reward_weights = weights_of_rewards(args.reward_weights, extra)
        check(
            Intended(
                args,
                self.method,
                model,
                train_dataset,
                skill_bank,
                encoder,
                has_tokenizer=processing_class is not None,
                own_environment=not is_adapted(self._factory),
                rewards=bool(reward_funcs),
                factory=self._factory,
                privileged=self.privileged,
                quantization=quantization_config,
                adapter=peft_config is not None,
            )
        )
        reward_check = RewardCheck()
        with made_for_turns(args, whole=isinstance(model, str)):
            super().__init__(
                model=model,
                reward_funcs=[reward_check.wrap(one) for one in (environment_reward, *extra)],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        strategies.refuse_unproven(self.accelerator)
        strategies.keep_output_precision(self.accelerator)
        self.processes = ProcessGroup(self.accelerator)
        self._check_model()
        self._load_privileged(skill_bank, encoder)
        self.teacher_weights = self._make_teacher_weights()
        self._make_parts(reward_check)
        self._add_callbacks()

    def _check_model(self) -> None:
        policy = self.accelerator.unwrap_model(self.model)
        if self.args.disable_dropout:
            without_noise(policy, self.ref_model)
        settle_quantised(policy)
        positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        told = [beyond_positions(positions, self.args), changes_nothing(self.args)]
        if self.accelerator.is_main_process:
            tell_left_out(policy, {**vars(self.args), **as_mapping(self.args.generation_kwargs)})
            for text in filter(None, told):
                show_note(text)
        check_tokenizer(self.processing_class)
        check_architecture(policy, self.args, self.method)
        check_quantised(getattr(policy.config, "quantization_config", None), self.args, is_peft_model(policy))
        if self.processes.agree(int(not weights_are_finite(self.model))):
            name = policy.config._name_or_path
            raise ValueError(f"the weights of model={name!r} are not finite; copy it again, or take an earlier one")
        if is_adapted(self._factory) and self._factory.prompt.native:
            require_tools(self.processing_class)
        options = PlayOptions.of(self.args)
        check_template(self.processing_class, options, is_adapted(self._factory) and self._factory.prompt.native)
        for told in notes_of(self.processing_class, options, self.eos_token_ids):
            if self.accelerator.is_main_process:
                show_note(told)

    def _load_privileged(self, skill_bank: SkillSpec | None, encoder: Any) -> None:
        with loaded_whole():
            self.encoder = load_encoder(encoder, device=self.accelerator.device) if encoder is not None else None
        self.skill_bank, self._skills = None, no_skills
        if skill_bank is not None:
            names = getattr(self.train_dataset, "column_names", None) or ()
            self.skill_bank = load_skills(skill_bank, self.encoder, names)
            self._skills = skill_source(self.skill_bank, self.processing_class, self.args.skill_budget)
        self._texts = None
        if self.privileged is not None and self.method.needs_teacher:
            self._texts = TurnTexts(self.privileged, self.processing_class, self.args.skill_budget)

    def _make_teacher_weights(self) -> TeacherWeights | None:
        """Returns `None` where the policy is its own teacher or no teacher is needed."""
        kind = self.args.teacher_model_kind
        if kind == "live" or not (self.method.needs_teacher or self.args.privileged_siblings):
            return None
        strategies.refuse_other_shards(self.accelerator, f"teacher_model_kind={kind!r}")
        return initial_weights(self, moves=kind == "ema")

    def _make_parts(self, reward_check: RewardCheck) -> None:
        args, tokenizer, processes, policy = self.args, self.processing_class, self.processes, TrainedPolicy(self)
        self.run_folder: RunFolder | None = None
        self.evaluations: dict[str, dict[str, Any]] = {}
        seconds, log, failed = Seconds(), TrainerLog(self), FailedShare(args.max_failed_share)
        status = Status(args, processes, policy, seconds)
        self.phases = Phases(status.show_phase)
        followed = self.teacher_weights if args.teacher_model_kind == "ema" else None
        self.checkpoints = Checkpoints(Path(args.output_dir), processes, policy, seconds, self.phases, failed, followed)
        self.rollouts = (RolloutsAhead if args.rounds_ahead else Rollouts)(
            self._factory,
            args,
            tokenizer,
            self.eos_token_ids,
            processes,
            skills=self._skills,
            failed=failed,
            save=self.checkpoints.save_last,
            beyond=status.updates_left,
        )
        self.backend = self.make_backend()
        self.samplers = Samplers(args, self.backend, self.teacher_weights, self.rollouts.slots)
        self.recorder = Recorder(args, processes, tokenizer, log)
        self.rewards = Rewards(
            policy,
            self.reward_funcs,
            self.reward_func_names,
            self.reward_weights,
            reward_check,
            self.rollouts,
            processes,
            log,
        )
        self.scorer = Scorer(
            policy,
            PolicyScorer(self),
            PolicyScorer(self, reference=True) if args.beta != 0.0 else None,
            PolicyScorer(self, teacher=self.teacher_weights) if self.teacher_weights else None,
            args,
            tokenizer,
            self.encoder,
            processes,
            self.phases,
            shared=shares_prefixes(self, self.method),
        )
        pad_id, end_id = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.row_maker = RowMaker(args, processes, pad_id, end_id, policy, self.recorder)
        self.panels = Panels(policy, self.samplers, self.rollouts, self.rewards, processes, seconds, self.train_dataset)
        self.drift = Drift(args, processes, self.recorder)
        self.update = Update(policy, self.accelerator, args, self.method, processes, self.drift)
        self._listeners = _listeners(args)

    def _add_callbacks(self) -> None:
        for quiet in (PrinterCallback, ProgressCallback):
            self.remove_callback(quiet)
        written = LogFile(Path(self.args.output_dir) / LOG_FILE)
        updates = self.args.steps_per_round
        seconds = SecondsOfRounds(self.recorder, self.phases, updates)
        for callback in (WholeRounds(updates), seconds, Lines(), written, self.checkpoints, self.drift, self.update):
            self.add_callback(callback)
        if self.teacher_weights is not None:
            self.add_callback(self.teacher_weights)
        if self.teacher_weights is not None and self.args.teacher_model_kind == "ema":
            rate, steps = self.args.teacher_update_rate, self.args.teacher_sync_steps
            self.add_callback(FollowingTeacher(self.teacher_weights, rate, steps))

    # A round

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Plays a round of whole sibling groups and returns TRL's rows. Every process makes the same calls."""
        self.checkpoints.check_weights(self.state.global_step)
        with self._saved_if_down(), self.samplers.snapshot() as snapshot:
            number, update = self._round, self.state.global_step
            with self.phases("rollout"):
                trajectories = self.rollouts.play(self._to_play(inputs, update, snapshot))
                replays = self.rollouts.replays(snapshot.sampler, self.method, number)
                self.rewards.give(inputs, trajectories, update)
                teacher = self.scorer.teacher(snapshot, self.rollouts.reader, self.method.kept_logits > 0)
                self._give_texts(trajectories, replays)
                if isinstance(self.rollouts, RolloutsAhead):
                    self._begin_next(self.rollouts, snapshot)
            with self.phases("credit"):
                batch = self._batch(trajectories, snapshot, teacher, replays)
                credit = checked_credit(self.method, batch, teacher, number)
                if self._texts is not None:
                    credit.trace["privileged_text"] = [turn.privileged_text for turn in batch.turns]
                rows = self.row_maker.rows(batch, credit, self.method.policy_weight)
            played = Round(number, update, trajectories, batch, credit, replays)
            for listener in self._listeners:
                if listener.listens(number):
                    self.rollouts.settle()
                    self.backend.take_back()
                    with self.phases("walks"):
                        found = listener.hear(played)
                    self.recorder.metrics("train", found)
        self.recorder.record(played, self.run_id, self.rollouts.take_counters())
        return rows

    def _give_texts(self, trajectories: Sequence[Trajectory], replays: Replays) -> None:
        """Gives the turns the texts of ``privileged``. A collective where there is such a source. If it fails on one
        process, the run ends on all of them with a checkpoint."""
        if self._texts is None:
            return
        share, problem = 0.0, None
        try:
            share = self._texts.give(trajectories, replays.player.renderer)
        except PrivilegedError as error:
            problem = str(error)
        if problems := list(filter(None, self.processes.each(problem))):
            self.checkpoints.save_last(self.state.global_step)
            raise RunStopped(f"{problems[0]}; {last_good(self.args.output_dir)}")
        self.recorder.metrics("train", {"teacher/text_share": share})

    def _to_play(self, rows: list[dict[str, Any]], update: int, snapshot: Snapshot) -> ToPlay:
        privileged = self.args.privileged_in(int(update // self.args.steps_per_round))
        teacher, hand_over = (snapshot.teacher, snapshot.hand_over) if privileged else (None, None)
        return ToPlay(rows, update, self.state.max_steps, snapshot.sampler, self.method, privileged, teacher, hand_over)

    def _begin_next(self, rollouts: RolloutsAhead, snapshot: Snapshot) -> None:
        """Begins to play the next round, if there is one, during credit and update of this one."""
        rows, updates = self._upcoming.after()
        update = self.state.global_step + updates
        if update < self.state.max_steps:
            rollouts.begin(self._to_play(rows, update, snapshot))

    @contextlib.contextmanager
    def _saved_if_down(self) -> Generator[None]:
        """Saves a checkpoint if the environments or the sampler are down."""
        try:
            yield
        except (EnvironmentsDown, SamplerDown):
            self.checkpoints.save_last(self.state.global_step)
            raise

    def make_backend(self) -> Backend:
        """Makes the decoding back end, once. Override it to use another one for rollouts and evaluations."""
        if not self.use_vllm:
            return OwnBackend(self)
        if not self.args.continuous_play:
            return EngineBackend(self, self.processes)
        if self.vllm_mode == "server":
            return ServerBackend(self, self.processes, partial(push_weights, self), partial(sampling_options, self))
        return ColocatedBackend(self, self.processes)

    def _batch(
        self, trajectories: Sequence[Trajectory], snapshot: Snapshot, teacher: PrivilegedTeacher, replays: Replays
    ) -> TurnBatch:
        """Makes the batch of a round's turns with all inputs of the method."""
        batch = self.scorer.batch(trajectories, self.method, snapshot)
        self.recorder.metrics("train", self.scorer.self_check(batch, teacher, self.method, snapshot.prefixes))
        if not self.method.needs_turn_advantages:
            return batch
        from alignopsd_trl.measure.training import monte_carlo_advantages

        self.rollouts.settle()
        self.backend.take_back()
        with self.phases("walks"):
            rollouts = self.method.options.walks
            found = monte_carlo_advantages(replays, trajectories, batch, rollouts)
            return replace(batch, turn_advantages=found)

    @property
    def _round(self) -> int:
        """Number of rollout rounds before this one, which a method's schedules count."""
        return self.state.global_step // self.args.steps_per_round

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
        return self.update.loss(model, inputs, self.method.auxiliary_weight)

    # Evaluation

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Plays the rows of a dataset as a panel, ``num_generations_eval`` times each. The loader's batches do not
        count, and there is no loss to report."""
        self.callback_handler.eval_dataloader = dataloader
        self.model.eval()  # tells TRL's log whose line is next; each training step sets the mode anew
        prefix = kwargs.get("metric_key_prefix", "eval")
        name = f"{description.lower()} {prefix.partition('_')[2]}".rstrip()
        rows = [*to_evaluate(dataloader.dataset, self._factory, name)]
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
            self.checkpoints.resume(self.run_folder)
            done = super().train(self.run_folder.resume, trial, ignore_keys_for_eval)
            if not borrowed:
                self.run_folder.end()
                if self.run_folder.writes and any(self.run_folder.path.glob("trajectories/*.parquet")):
                    print(f"where the credit went: alignopsd view {path_as_given(self.run_folder.path)}", flush=True)
            return done
        finally:
            self.close()
            self.checkpoints.seconds.end()
            if not borrowed:
                self.run_folder.release()
                self.run_folder = None

    def close(self) -> None:
        """Closes the environments and the connections to servers; the next round or evaluation opens new ones. Training
        calls it at its end; the trainer's deletion closes the rest."""
        self.samplers.close()  # first, since rounds that are played ahead end with their requests
        self.rollouts.close()

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        self._order = EpochSampler.like(super()._get_train_sampler(dataset))
        rows: Any = self._order.data_source
        if self.args.spread_categories and "category" in rows.column_names:
            self._order.kinds = rows["category"]
        accumulated, group = self.args.gradient_accumulation_steps, self.processes
        self._upcoming = Upcoming(self._order, accumulated, group.process, group.processes)
        return self._order

    def _run_epoch(self, model: Any, epoch: int, *args: Any, **kwargs: Any) -> None:
        """Sets the epoch of the task order. A resumed run that has made all its updates trains nothing."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        self._order.epoch = epoch
        resumed = epoch == kwargs["epochs_trained"]
        self._upcoming.begin(epoch, kwargs["steps_trained_in_current_epoch"] if resumed else 0)
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
        if not weights_are_finite(self.model):
            raise RunStopped(f"the weights are not finite; they were not saved, and {last_good(self.args.output_dir)}")
        target, own = Path(output_dir or self.args.output_dir), Path(self.args.output_dir)
        checkpoint = _internal_call and output_dir is not None
        whole = target == own and self.args.should_save  # without a mark at the end each file is replaced in one step
        with (
            full_disk_named(self.args.output_dir, "the model"),
            contextlib.nullcontext() if checkpoint else strategies.whole_state_dict(self.accelerator),
            patched(self.args, hub_token=None),  # transformers pickles its arguments beside the model
            replacing(target) if whole else contextlib.nullcontext(target) as place,
        ):
            super().save_model(str(place), _internal_call=True)
            if self.args.should_save:
                write_sizes(Path(place), vars(self.args))
                readable_as_others(Path(place))
            written = [target / one.name for one in Path(place).iterdir()] if whole else []
            begin(written, TRAIN)
        note(written, TRAIN)
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
        if not self.is_world_process_zero():
            return
        folder, chosen = Path(self.args.output_dir), self.args.hub_model_id
        results = trainer_results(self, self._factory, self.evaluations)
        place = self.hub_model_id or chosen or path_as_given(self.args.output_dir)
        with owned(TRAIN, folder / "README.md"):
            write_text(folder / "README.md", model_card(results, model_name or chosen or folder.name, licence, place))

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

        def own_card(_: Path, repository: str) -> dict[str, bytes]:
            self.hub_model_id = repository
            self.create_model_card(**card)
            return {}

        folder = Path(self.args.output_dir)
        chosen = self.hub_model_id or self.args.hub_model_id or folder.name
        own_card(folder, chosen)
        more = {"token": token, "private": private, "revision": revision, "run_as_future": not blocking}
        return self._push(folder, chosen, commit_message, patterns=OF_A_RUN, instead=own_card, **more)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Pushes a checkpoint's model during training (``hub_strategy``). A failed push does not end the run."""
        if not self.is_world_process_zero() or self.args.hub_strategy == "end":
            return
        message = f"Training in progress, step {self.state.global_step}"
        try:
            self._push(Path(checkpoint_folder), str(self.hub_model_id), message, patterns=OF_A_MODEL)
        except PushFailed as error:
            logger.warning(f"checkpoint of update {self.state.global_step}: {error}")

    def _push(self, folder: Path, repository: str, message: str | None, **given: Any) -> Any:
        """Pushes files in one commit; the configuration has the token, privacy and revision that are not given."""
        args = self.args
        usual: dict[str, Any] = {
            "token": args.hub_token,
            "private": args.hub_private_repo,
            "revision": args.hub_revision,
        }
        options = usual | {name: value for name, value in given.items() if value is not None}
        return push_files(folder, repository, "trainer.push_to_hub()", commit_message=message, **options)


def _listeners(config: AlignOPSDConfig) -> list[Listener]:
    """Makes a config's listeners of rounds. `measure` imports parts of the trainer, so it is imported here."""
    if not config.fidelity_every:
        return []
    from alignopsd_trl.measure.training import FidelityListener

    return [FidelityListener(config)]

"""AlignOPSDTrainer wires the rooms to TRL's seams; it computes nothing itself.

Per generation round, on every process: play the episodes of the local dataset rows in lockstep; make a `TurnBatch`;
let the method assign credit; hand TRL one row per turn. TRL's sampler, loss, logging, checkpoints and generation
backends stay as they are. Each base class in `training` is one concern: the run's folder, episodes, rewards, views of
the policy, the update.
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback

from alignopsd_trl import trl_compat
from alignopsd_trl.checks import Intended, check
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.base import EnvironmentsDown
from alignopsd_trl.fidelity.training import fidelity_metrics, monte_carlo_advantages
from alignopsd_trl.methods import Credit, checked_credit, get_method
from alignopsd_trl.policy import strategies
from alignopsd_trl.policy.phases import Phases
from alignopsd_trl.policy.prefix_cache import PrefixCache
from alignopsd_trl.policy.process_group import ProcessGroup
from alignopsd_trl.policy.shipped import resolve_model
from alignopsd_trl.policy.teacher import skill_source
from alignopsd_trl.policy.turn_rows import (
    TARGET,
    Layout,
    collate_rows,
    sampling_log_probs,
)
from alignopsd_trl.reading import Reader, require_tools
from alignopsd_trl.rollout import (
    no_skills,
)
from alignopsd_trl.runs.console import Lines, show_note
from alignopsd_trl.runs.cores import use_what_is_left
from alignopsd_trl.runs.folder import LOG_FILE, RunFolder
from alignopsd_trl.runs.health import FailedShare
from alignopsd_trl.runs.log import LogFile
from alignopsd_trl.runs.order import EpochSampler, WholeRounds
from alignopsd_trl.runs.rewards import RewardCheck
from alignopsd_trl.skills import SkillSpec, load_skills
from alignopsd_trl.training.checkpoints import RunKeeping
from alignopsd_trl.training.compatibility import adapted, check_rewarded, is_adapted
from alignopsd_trl.training.playing import Playing
from alignopsd_trl.training.rewards import Rewards
from alignopsd_trl.training.sharing import Sharing
from alignopsd_trl.training.update import ChunkedUpdate
from alignopsd_trl.training.views import Views
from alignopsd_trl.turns import Trajectory, TurnBatch

logger = logging.getLogger(__name__)


def environment_reward(trajectory: Sequence[Trajectory], **columns: Any) -> list[float | None]:
    """The environment's own terminal reward; the first reward function of every run. ``None`` where the environment
    failed."""
    return [None if one.failed else one.reward for one in trajectory]


class AlignOPSDTrainer(RunKeeping, Sharing, Playing, Rewards, Views, ChunkedUpdate):
    """Trains a language agent over many turns with outcome-grounded credit per turn.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            Policy: a hub id, a path, a model, or a shipped policy: ``"tiny"`` (for ``webshop_tiny``),
            ``"tiny_trips"``, ``"tiny_alfworld"``, ``"tiny_pairs"``, ``"tiny_searchqa"`` or ``"tiny_hops"``.
        args ([`AlignOPSDConfig`]):
            Configuration. Batch sizes count trajectories.
        environment_factory (`Callable[[], TextEnvironment]` or one of TRL's convention):
            Makes one environment, without arguments. If it has a method ``batch(size, time_limit)``, that is used. A
            class that was written for [`~trl.GRPOTrainer`] (tools as methods), or a dict of such chosen by the column
            ``environment``, is played through [`~alignopsd_trl.environments.adapters.ToolEnvironment`].
        train_dataset ([`~datasets.Dataset`]):
            One row per task, with a ``task_id``; every column is handed to ``reset``. TRL's classes need no
            ``task_id``, and no dataset if `reset` gives the prompt and ``max_steps`` is set.
        eval_dataset ([`~datasets.Dataset`], *optional*):
            The same for `evaluate`.
        skill_bank (`str`, path, [`SkillBank`] or callable, *optional*):
            Privileged text; needed by methods with a teacher. A shipped bank's name, the path of a JSON file, a column
            of the dataset (hints, reference solutions, past trajectories), or a function ``(task_text, row) -> str`` or
            ``(task_text, task_key, data_source) -> str``.
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
    _name = "AlignOPSD"
    _paper = {
        "title": "Beyond Timestamps: Decision-Aligned On-Policy Distillation for Long-Horizon Agents",
        "id": None,
        "citation": textwrap.dedent("""\
            @article{chen2026alignopsd,
                title  = {{Beyond Timestamps: Decision-Aligned On-Policy Distillation for Long-Horizon Agents}},
                author = {Mingju Chen and Can Lv and Jinrong Liu and Huan Zhang and Heng Chang and Shiji Zhou},
                year   = 2026,
            }"""),
    }

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
    ):
        model = resolve_model(model) if isinstance(model, str) else model
        args = args if args is not None else AlignOPSDConfig(f"{Path(str(model)).name}-AlignOPSD")
        if not isinstance(args, AlignOPSDConfig):
            raise TypeError(f"args must be an AlignOPSDConfig, got {type(args).__name__}")
        if args.device.type == "cpu" and (told := use_what_is_left()):
            show_note(told)
        self.method = get_method(args.method)(args)
        environment_factory, train_dataset, eval_dataset = adapted(
            environment_factory, tools, train_dataset, eval_dataset, args
        )
        self._environment_factory = environment_factory
        check(
            Intended(
                args,
                self.method,
                model,
                train_dataset,
                skill_bank,
                encoder,
                has_tokenizer=processing_class is not None,
                own_environment=not is_adapted(environment_factory),
                rewards=bool(reward_funcs),
            )
        )
        extra = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        check_rewarded(environment_factory, extra)
        if args.reward_weights is not None and len(args.reward_weights) == len(extra):
            args.reward_weights = [1.0, *args.reward_weights]
        elif args.reward_weights is not None and len(args.reward_weights) != len(extra) + 1:
            raise ValueError(
                f"reward_weights has {len(args.reward_weights)} entries for {len(extra)} reward_funcs; give one each "
                "(the environment's own reward has weight 1), or one more in front for the environment's"
            )
        self._environment_batch: Any = None
        self._live: tuple[torch.Tensor, ...] | None = None
        self._read: torch.Tensor | None = None  # while TRL's loss runs: its mask
        self._prefixes: PrefixCache | None = None  # while a round is played and credited
        self._until: Reader | None = None  # while thoughts without actions are sampled
        self.phases = Phases(self._show_phase)
        self._rounds_checked = 0
        self._told_of_breaks = False
        self.run_folder: RunFolder | None = None
        self._reward_check = RewardCheck()
        self._failed_share = FailedShare(args.max_failed_share)
        self._loss_is_finite = True
        self._sampler: EpochSampler | None = None
        self._written: tuple[int, int] = (-1, 0)  # update and number of rounds recorded in it
        self._seconds = {"training": 0.0, "evaluation": 0.0}
        self._began: float | None = None
        self.evaluations: dict[str, dict[str, Any]] = {}
        if isinstance(model, str):
            trl_compat.whole_on_each_process(args)
        with trl_compat.reference_like_policy(), trl_compat.engine_options(args.engine_options):
            super().__init__(
                model=model,
                reward_funcs=[self._reward_check.wrap(one) for one in (environment_reward, *extra)],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        self._check_model()
        if is_adapted(self._environment_factory) and self._environment_factory.prompt.native:
            require_tools(self.processing_class)
        self.add_callback(WholeRounds(args.steps_per_round))
        for quiet in (PrinterCallback, ProgressCallback):
            self.remove_callback(quiet)
        self.add_callback(Lines())
        self.add_callback(LogFile(Path(args.output_dir) / LOG_FILE))
        self._share_prefixes = args.share_prefixes and self._can_share()
        trl_compat.switch_entropy_bonus_off(self)  # its per-micro-batch mean: see _extra_loss
        with trl_compat.loaded_whole():
            self.encoder = load_encoder(encoder, device=self.accelerator.device) if encoder is not None else None
        self.skill_bank = None
        if skill_bank is not None:
            self.skill_bank = load_skills(skill_bank, self.encoder, getattr(train_dataset, "column_names", None) or ())
        self._skills = no_skills
        if self.skill_bank is not None:
            self._skills = skill_source(self.skill_bank, self.processing_class, args.skill_budget)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        strategies.refuse_unproven(self.accelerator)
        strategies.keep_output_precision(self.accelerator)
        self.processes = ProcessGroup(self.accelerator)

    def _check_model(self) -> None:
        if self.aux_loss_enabled:
            raise ValueError(
                "a mixture-of-experts load-balancing loss is a mean per micro-batch, which sub-chunks would change; "
                "set router_aux_loss_coef=0.0"
            )
        if self._merges and (reason := trl_compat.why_not_merged(self)):
            raise ValueError(f"merge_rows=True would change what this model computes: {reason}; set merge_rows=False")
        if trl_compat.is_multimodal(self):
            raise ValueError("processing_class must be a tokenizer: prompts are text")
        if self.processing_class.eos_token_id is None:
            raise ValueError("processing_class has no eos_token, which ends a turn; set tokenizer.eos_token")

    def _can_share(self) -> bool:
        reason = trl_compat.why_not_shared(self)
        if reason and self.method.needs_teacher and self.accelerator.is_main_process:
            logger.warning(
                f"share_prefixes=True scores each pair of prompt and response alone with this model: {reason}"
            )
        return reason is None

    @trl_compat.with_sampler_awake
    @trl_compat.with_prefixes
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        step = self.state.global_step
        self._check_weights()
        with self.phases("rollout"):
            self._environments()
            self._environment_counters.take()  # what an evaluation added since the last round
            try:
                trajectories = self._play_groups(inputs, step)
            except EnvironmentsDown:
                self._save_last()
                raise
            self._check_episodes(trajectories)
            self._reward(inputs, trajectories)
        with self.phases("credit"):
            batch = TurnBatch.of(trajectories, self.processing_class.pad_token_id, self.accelerator.device)
            if self.mask_truncated_completions:
                batch.policy_mask[[row for row, turn in enumerate(batch.turns) if turn.truncated]] = False
            if self.args.skip_zero_advantage:
                batch.scored = ~self.method.unmoved(batch)
            columns = self._snapshot_columns(batch)
            self._log_metrics("train", self._self_check(batch))
            if self.method.needs_turn_advantages:
                batch.turn_advantages = self._turn_advantages(trajectories, batch)
            credit = checked_credit(self.method, batch, self._teacher(), self._round)
            rows = self._rows(batch, credit, columns)
        self._measure_fidelity(trajectories, batch, credit)
        self._log_round(trajectories, batch, credit, step)
        return rows

    def _turn_advantages(self, trajectories: Sequence[Trajectory], batch: TurnBatch) -> torch.Tensor:
        walks = self.method.options.walks
        player, slots, seed = self._walker()
        with self.phases("walks"):
            return monte_carlo_advantages(player, slots, trajectories, batch, walks, "reward", seed)

    def _measure_fidelity(self, trajectories: Sequence[Trajectory], batch: TurnBatch, credit: Credit) -> None:
        every, limits = self.args.fidelity_every, {"tasks": self.args.fidelity_tasks, "walks": self.args.fidelity_walks}
        if not every or self._round % every:
            return
        player, slots, seed = self._walker()
        with self.phases("walks"):
            metrics = fidelity_metrics(player, slots, trajectories, batch, credit, self.args, **limits, seed=seed)
        self._log_metrics("train", metrics)

    @property
    def _round(self) -> int:
        """Rollout rounds before this one: what a method's schedules count."""
        return self.state.global_step // self.args.steps_per_round

    def _rows(self, batch: TurnBatch, credit: Credit, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        policy = self.method.coefficients(self._round).policy
        columns["advantages"] = credit.advantages * policy
        columns |= {TARGET + name: values for name, values in credit.targets.items()}
        if self.use_vllm:
            sampled = sampling_log_probs(batch.turns, batch.policy_mask.size(1), self.accelerator.device)
            columns["sampling_per_token_logps"] = sampled
            if trl_compat.corrects_sampling(self):
                difference = (columns["old_per_token_logps"] - sampled) * batch.policy_mask
                ratio = columns["importance_sampling_ratio"] = trl_compat.sampling_ratio(self, difference)
                self._log_metrics("train", trl_compat.sampling_metrics(difference, ratio, batch.policy_mask))
        parts = self.args.steps_per_generation
        layout = Layout.of(batch, merge=self._merges)
        count = -(-max(self.processes.agree(len(layout)), 1) // parts) * parts
        tokenizer = self.processing_class
        rows = collate_rows(batch, columns, count, tokenizer.pad_token_id, tokenizer.eos_token_id, layout)
        tokens = batch.policy_mask.sum().reshape(1)
        rows["num_items_in_batch"] = self.accelerator.gather(tokens).sum()
        return rows

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        strategies.keep_gradients_sharded(self.accelerator, self.model_wrapped)
        if self._began is None:  # a session that trains nothing adds nothing
            self._evaluated_before, self._began = self._seconds["evaluation"], time.perf_counter()
        with self.phases("update"):
            loss = super().training_step(*args, **kwargs)
            self._loss_is_finite = self._loss_is_finite and bool(torch.isfinite(loss))
        return loss

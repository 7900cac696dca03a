"""AlignOPSDTrainer wires the rooms to TRL's seams; it computes nothing itself.

Per generation round, on every process: play the episodes of the local dataset rows in lockstep; make a `TurnBatch`;
let the method assign credit; hand TRL one row per turn. TRL's sampler, loss, logging, checkpoints and generation
backends stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import textwrap
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOTrainer

from alignopsd_trl.config import AlignOPSDConfig, card_fields
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.evaluation import EvaluationResult, Outcome, evaluating, play_panel, summarise
from alignopsd_trl.fidelity.training import fidelity_metrics, monte_carlo_advantages
from alignopsd_trl.methods import Credit, checked_credit, get_method
from alignopsd_trl.policy import seams, strategies
from alignopsd_trl.policy.phases import Phases
from alignopsd_trl.policy.progress import Bar
from alignopsd_trl.policy.ragged import Ragged
from alignopsd_trl.policy.scoring import score_pairs
from alignopsd_trl.policy.self_check import SelfCheck
from alignopsd_trl.policy.shipped import resolve_model
from alignopsd_trl.policy.teacher import PrivilegedTeacher, skill_source
from alignopsd_trl.policy.turn_rows import (
    TARGET,
    VOCABULARY,
    collate_rows,
    live_rows,
    sampling_log_probs,
    sub_chunks,
)
from alignopsd_trl.policy.world import World
from alignopsd_trl.records import merge_types, record_schema, trace_types, turn_records, write_records
from alignopsd_trl.rollout import (
    Counters,
    Player,
    Renderer,
    episode_seed,
    generate_sorted,
    no_skills,
    rollout_metrics,
    siblings_before,
)
from alignopsd_trl.runs.checkpoints import MARK, PREFIX, is_whole, last_good, load_state, save_state
from alignopsd_trl.runs.console import Lines, show_note, show_status
from alignopsd_trl.runs.folder import LOG_FILE, RunFolder, claim_together, configuration_of
from alignopsd_trl.runs.health import FailedShare, RunStopped, Tally, weights_are_finite
from alignopsd_trl.runs.log import LogFile
from alignopsd_trl.runs.order import EpochSampler, WholeRounds
from alignopsd_trl.runs.rewards import RewardCheck, RewardError
from alignopsd_trl.skills import SkillSpec, load_skills
from alignopsd_trl.turns import Trajectory, TurnBatch
from environments.base import EnvironmentsDown, TextEnvironment
from environments.batch import open_batch
from environments.panel import TaskPanel

logger = logging.getLogger(__name__)


def environment_reward(trajectory: Sequence[Trajectory], **columns: Any) -> list[float | None]:
    """The environment's own terminal reward; the first reward function of every run. ``None`` where the environment
    failed."""
    return [None if one.failed else one.reward for one in trajectory]


class AlignOPSDTrainer(GRPOTrainer):
    """Trains a language agent over many turns with outcome-grounded credit per turn.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            Policy: a hub id, a path, a model, or a shipped policy: ``"tiny"`` (for ``webshop_tiny``),
            ``"tiny_alfworld"`` or ``"tiny_searchqa"``.
        args ([`AlignOPSDConfig`]):
            Configuration. Batch sizes count trajectories.
        environment_factory (`Callable[[], TextEnvironment]`):
            Makes one environment, without arguments. If it has a method ``batch(size, time_limit)``, that is used.
        train_dataset ([`~datasets.Dataset`]):
            One row per task, with a ``task_id``; every column is handed to ``reset``.
        eval_dataset ([`~datasets.Dataset`], *optional*):
            The same for `evaluate`.
        skill_bank (`str`, path, [`SkillBank`] or callable, *optional*):
            Privileged text; needed by methods with a teacher. A shipped bank's name, the path of a JSON file, or a
            function ``(task_text, task_key, data_source) -> str``.
        encoder (`str` or callable, *optional*):
            ``"lexical"``, a sentence-transformers id or path, or a callable ``list[str] -> (n, D)``; needed by methods
            that compare thinking.
        reward_funcs (*optional*):
            Further terms of the terminal reward, in TRL's convention, called with ``trajectory=[...]`` beside the
            dataset's columns, on the episodes that their environment did not fail. One finite number each, or `None`
            where a function does not apply; anything else ends the run.
        processing_class, callbacks, optimizers, quantization_config, peft_config:
            As in [`~trl.GRPOTrainer`].

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
        environment_factory: Callable[[], TextEnvironment] | None = None,
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
    ):
        model = resolve_model(model) if isinstance(model, str) else model
        args = args if args is not None else AlignOPSDConfig(f"{Path(str(model)).name}-AlignOPSD")
        if not isinstance(args, AlignOPSDConfig):
            raise TypeError(f"args must be an AlignOPSDConfig, got {type(args).__name__}")
        if not callable(environment_factory):
            raise TypeError("environment_factory must be a callable without arguments that makes an environment")
        self.method = get_method(args.method)(args)
        self._check_parts(args, train_dataset, skill_bank, encoder, reward_funcs)
        extra = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        if args.reward_weights is not None and len(args.reward_weights) == len(extra):
            args.reward_weights = [1.0, *args.reward_weights]
        elif args.reward_weights is not None and len(args.reward_weights) != len(extra) + 1:
            raise ValueError(
                f"reward_weights has {len(args.reward_weights)} entries for {len(extra)} reward_funcs; give one each "
                "(the environment's own reward has weight 1), or one more in front for the environment's"
            )
        self._environment_factory = environment_factory
        self._environment_batch: Any = None
        self._live: tuple[torch.Tensor, ...] | None = None
        self.phases = Phases(self._show_phase)
        self._rounds_checked = 0
        self.run_folder: RunFolder | None = None
        self._reward_check = RewardCheck()
        self._failed_share = FailedShare(args.max_failed_share)
        self._loss_is_finite = True
        self._sampler: EpochSampler | None = None
        self._written: tuple[int, int] = (-1, 0)  # update and number of rounds recorded in it
        self._seconds = {"training": 0.0, "evaluation": 0.0}
        self._began: float | None = None
        if isinstance(model, str):
            seams.whole_on_each_process(args)
        with seams.reference_like_policy(), seams.engine_options(args.engine_options):
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
        updates = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
        self.add_callback(WholeRounds(updates))
        for quiet in (PrinterCallback, ProgressCallback):
            self.remove_callback(quiet)
        self.add_callback(Lines())
        self.add_callback(LogFile(Path(args.output_dir) / LOG_FILE))
        self._share_prefixes = args.share_prefixes and self._can_share()
        seams.switch_entropy_bonus_off(self)  # its per-micro-batch mean would change with sub-chunks: see _extra_loss
        with seams.loaded_whole():
            self.encoder = load_encoder(encoder, device=self.accelerator.device) if encoder is not None else None
        self.skill_bank = load_skills(skill_bank, self.encoder) if skill_bank is not None else None
        self._skills = no_skills
        if self.skill_bank is not None:
            self._skills = skill_source(self.skill_bank, self.processing_class, args.skill_budget)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        strategies.refuse_unproven(self.accelerator)
        strategies.keep_output_precision(self.accelerator)
        self.world = World(self.accelerator)

    def _check_parts(
        self, args: AlignOPSDConfig, dataset: Any, skill_bank: Any, encoder: Any, reward_funcs: Any
    ) -> None:
        method = self.method
        if not method.trains:
            raise ValueError(
                f"method={method.name!r} trains nothing; evaluate it with python -m alignopsd_trl.evaluation"
            )
        if skill_bank is None and (method.needs_teacher or method.skills_in_rollout):
            raise ValueError(
                f"method={method.name!r} needs a skill_bank: pass 'webshop', 'alfworld', 'searchqa', a file's path, or "
                "a function from a task's text to its skills"
            )
        if encoder is None and method.needs_encoder:
            raise ValueError(
                f"method={method.name!r} needs an encoder: pass 'lexical' or a sentence-transformers id or path"
            )
        if method.needs_turn_advantages and (reward_funcs or args.reward_weights not in (None, [1.0])):
            raise ValueError(
                f"method={method.name!r} walks for the environment's own reward alone; remove reward_funcs and "
                "reward_weights"
            )
        names = getattr(dataset, "column_names", None)
        if dataset is None or (names is not None and "task_id" not in names):
            raise ValueError(f"train_dataset needs a column 'task_id' (one row per task); it has {names}")
        if names is not None and "seed" in names:
            raise ValueError("train_dataset has a column 'seed', which reset() gets from the trainer; rename it")
        if isinstance(dataset, Dataset) and None in (ids := list(dataset["task_id"])):
            raise ValueError(f"train_dataset: row {ids.index(None)} has no task_id; give each task one of its own")
        if isinstance(dataset, Dataset) and len(dataset) < args.generation_batch_size // args.num_generations:
            raise ValueError(
                f"train_dataset has {len(dataset)} tasks, but one round needs "
                f"{args.generation_batch_size // args.num_generations} (generation_batch_size / num_generations)"
            )

    def _check_model(self) -> None:
        if self.aux_loss_enabled:
            raise ValueError(
                "a mixture-of-experts load-balancing loss is a mean per micro-batch, which sub-chunks would change; "
                "set router_aux_loss_coef=0.0"
            )
        if seams.is_multimodal(self):
            raise ValueError("processing_class must be a tokenizer: prompts are text")
        if self.processing_class.eos_token_id is None:
            raise ValueError("processing_class has no eos_token, which ends a turn; set tokenizer.eos_token")

    def _can_share(self) -> bool:
        reason = seams.why_not_shared(self)
        if reason and self.method.needs_teacher and self.accelerator.is_main_process:
            logger.warning(
                f"share_prefixes=True scores each pair of prompt and response alone with this model: {reason}"
            )
        return reason is None

    # ------------------------------------------------------------------ rollout

    @seams.with_sampler_awake
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

    def _play_groups(self, inputs: Sequence[Mapping[str, Any]], step: int) -> list[Trajectory]:
        """Episodes of whole sibling groups: `num_generations` equal rows side by side are one group."""
        siblings = self.num_generations
        seen: dict[str, int] = {}
        tasks: list[str] = []
        for first in range(0, len(inputs), siblings):
            identity = inputs[first]["task_id"]
            if any(row["task_id"] != identity for row in inputs[first : first + siblings]):
                raise RuntimeError("a sibling group straddles processes; this is a bug, please report it")
            count = seen[identity] = seen.get(identity, 0) + 1
            tasks += [identity if count == 1 else f"{identity}#{count}"] * siblings
        seeds = [episode_seed(row["task_id"], step, place % siblings) for place, row in enumerate(inputs)]
        skilled = self.method.needs_teacher or self.method.skills_in_rollout
        with self._bar(len(inputs), f"update {step + 1}/{self.state.max_steps}: rollout") as progress:
            player = self._player(skilled, self.method.skills_in_rollout, progress)
            return player.play(inputs, seeds, tasks)

    def _player(
        self, skilled: bool, skills_in_rollout: bool, progress: Callable[[int], None] = lambda ended: None
    ) -> Player:
        batch = self._environments()
        return Player(
            environments=batch,
            renderer=Renderer(
                self.processing_class, batch.prompt, self.args.max_prompt_length, self.chat_template_kwargs
            ),
            generate=lambda prompts: seams.generate(self, prompts),
            tokenizer=self.processing_class,
            end_ids=self.eos_token_ids,
            skills=self._skills if skilled else no_skills,
            skills_in_rollout=skills_in_rollout,
            max_turns=self.args.max_turns,
            agree=self.world.agree,
            progress=progress,
        )

    def _environments(self) -> Any:
        if self._environment_batch is None:
            size = max(
                self.args.per_device_train_batch_size * self.args.steps_per_generation,
                self.args.per_device_eval_batch_size,
            )
            self._environment_batch = open_batch(self._environment_factory, size, self.args.environment_time_limit)
            self._environment_counters = Counters(self._environment_batch)
            self._environment_closer = weakref.finalize(self, self._environment_batch.close)
            self._environment_slots = size
        return self._environment_batch

    def close(self) -> None:
        """Closes the environments; the next round or evaluation opens new ones. Training does it when it ends, and
        what is open still goes with the trainer."""
        if self._environment_batch is not None:
            self._environment_closer()
            self._environment_batch = None

    def _check_episodes(self, trajectories: Sequence[Trajectory]) -> None:
        tally = Tally.total(gather_object([Tally.of(trajectories)]))
        if tally.failed and self.is_world_process_zero():
            show_note(f"{tally.failed} of {tally.episodes} episodes failed; the first: {tally.message}")
        problem = self._failed_share.problem(tally)
        if problem:
            self._save_last()
            raise RunStopped(f"update {self.state.global_step + 1}: {problem}; {last_good(self.args.output_dir)}")

    def _reward(self, inputs: Sequence[Mapping[str, Any]], trajectories: Sequence[Trajectory]) -> None:
        """Terminal rewards through TRL's own reward path: the environment's, plus the user's functions."""
        rows = [{**row, "trajectory": one} for row, one in zip(inputs, trajectories, strict=True)]
        prompts = [one.task_text for one in trajectories]
        completions = ["\n".join(turn.response_text for turn in one.turns) for one in trajectories]
        ids = [[token for turn in one.turns for token in turn.response_ids] for one in trajectories]
        table = seams.rewards(self, rows, prompts, completions, ids)
        failed = torch.tensor([one.failed for one in trajectories], device=table.device)
        table[self.accelerator.gather(failed)] = math.nan  # their rewards count nowhere
        self._check_rewards(table)
        weights = self.reward_weights.to(table.device)
        total = (table * weights).nansum(dim=1)
        first = self.accelerator.process_index * len(trajectories)
        for one, reward in zip(trajectories, total[first : first + len(trajectories)].tolist(), strict=True):
            one.reward = reward
        for column, name in enumerate(self.reward_func_names):
            seams.log_value(self, "train", f"rewards/{name}/mean", torch.nanmean(table[:, column]).item())
        seams.log_value(self, "train", "reward", torch.nanmean(total).item())
        seams.log_samples(self, "prompt", gather_object(prompts))
        seams.log_samples(self, "completion", gather_object(completions))
        for column, name in enumerate(self.reward_func_names):
            seams.log_reward_samples(self, name, table[:, column].tolist())

    def _check_rewards(self, table: torch.Tensor) -> None:
        """Ends the run, on all processes, for a reward that is no finite number."""
        problem, silent = self._reward_check.take()
        problems = [one for one in gather_object([problem]) if one]
        for column, row in (torch.isinf(table).T.nonzero()[:1]).tolist():
            name = self.reward_func_names[column]
            problems.append(f"reward function {name!r} returned {table[row, column]} for row {row} of all processes")
        if problems:
            raise RewardError(f"update {self.state.global_step + 1}: {problems[0]}")
        for name, count in silent.items():
            seams.log_value(self, "train", f"rewards/{name}/none", count)

    # ------------------------------------------------------------------ walks

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
            metrics = fidelity_metrics(player, slots, trajectories, batch, credit, **limits, seed=seed)
        self._log_metrics("train", metrics)

    def _walker(self) -> tuple[Player, int, int]:
        """The rollout's player, how many episodes it plays side by side, and a seed of this round and process."""
        skilled = self.method.needs_teacher or self.method.skills_in_rollout
        player = self._player(skilled, self.method.skills_in_rollout)
        return player, self._environment_slots, 1_000_003 * self.accelerator.process_index + self._round

    # ------------------------------------------------------------------ credit

    @property
    def _round(self) -> int:
        """Rollout rounds before this one: what a method's schedules count."""
        micro_steps = self.args.steps_per_generation * self.num_iterations
        return self.state.global_step * self.args.gradient_accumulation_steps // micro_steps

    def _teacher(self, phases: Phases | None = None) -> PrivilegedTeacher:
        return PrivilegedTeacher(
            seams.PolicyScorer(self),
            self._think,
            self.processing_class,
            self.encoder,
            budget=self.args.scoring_tokens,
            share_prefixes=self._share_prefixes,
            agree=self.world.agree,
            gather=self.world.gather,
            phases=phases or self.phases,
        )

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        if self.model.training and seams.samples_plainly(self):  # evaluations play through the loop of `evaluate`
            return seams.decode(self, prompt_ids)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _think(self, prompts: list[list[int]]) -> tuple[list[list[int]], Any]:
        limit = self.args.teacher_max_completion_length or self.max_completion_length
        size = seams.rows_at_once(self, prompts, limit, least=self._environment_slots)
        with seams.sampling(self, self.temperature, limit):
            return generate_sorted(lambda part: seams.generate(self, part), prompts, size)

    def _self_check(self, batch: TurnBatch) -> dict[str, float]:
        if not self.args.self_check:
            return {}
        fresh = self.beta != 0.0 and self.state.global_step == 0
        with self.phases("self_check"):
            check = SelfCheck(
                self.world,
                seams.PolicyScorer(self),
                seams.PolicyScorer(self, reference=True) if fresh else None,
                self._teacher(Phases()).score if self.method.needs_teacher else None,
                self.encoder if self.method.needs_encoder else None,
                pad_id=self.processing_class.pad_token_id,
                budget=self.args.scoring_tokens,
                shared=self._share_prefixes,
                sampled=self.use_vllm,
                exact=strategies.computes_exactly(self.accelerator, self.model),
            )
            self._rounds_checked += 1
            if self._rounds_checked == 1:
                return check.first_round(batch)
            return check.later_round(batch, strict=self._rounds_checked == 2)

    def _snapshot_columns(self, batch: TurnBatch) -> dict[str, torch.Tensor]:
        """Log-probs of the sampled responses under their own prompts: by the snapshot, and by the reference."""
        columns = {}
        with self.phases("scoring"):
            if self.method.needs_student_log_probs or seams.needs_old_log_probs(self):
                kept = self._kept_log_probs(batch)
                batch.student_log_probs = self._score_own(batch, reference=False) if kept is None else kept
            if seams.needs_old_log_probs(self):
                columns["old_per_token_logps"] = batch.student_log_probs
            if self.beta != 0.0:
                columns["ref_per_token_logps"] = self._score_own(batch, reference=True)
        return columns

    def _kept_log_probs(self, batch: TurnBatch) -> torch.Tensor | None:
        """What sampling kept, if it is what scoring would give on every process."""
        if self.use_vllm or not seams.scores_as_sampled(self):
            return None
        found = sampling_log_probs(batch.turns, batch.policy_mask.size(1), self.accelerator.device)
        return None if self.world.agree(int(found.isnan().any())) else found

    def _score_own(self, batch: TurnBatch, reference: bool) -> torch.Tensor:
        updated = reference or seams.needs_old_log_probs(self)
        wanted = torch.ones(len(batch), dtype=torch.bool) if batch.scored is None or updated else batch.scored.cpu()
        rows = wanted.nonzero().squeeze(1)
        scores = score_pairs(
            seams.PolicyScorer(self, reference),
            Ragged.of([turn.prompt_ids for turn in batch.turns]),
            Ragged.of([turn.response_ids for turn in batch.turns]),
            rows,
            rows,
            pad_id=self.processing_class.pad_token_id,
            budget=self.args.scoring_tokens,
            shared=self._share_prefixes,
            agree=self.world.agree,
        )
        result = scores.new_zeros(batch.policy_mask.shape)
        result[rows.to(result.device)] = scores[:, : result.size(1)]
        return result

    def _rows(self, batch: TurnBatch, credit: Credit, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        policy = self.method.coefficients(self._round).policy
        columns["advantages"] = credit.advantages * policy
        columns |= {TARGET + name: values for name, values in credit.targets.items()}
        if self.use_vllm:
            sampled = sampling_log_probs(batch.turns, batch.policy_mask.size(1), self.accelerator.device)
            columns["sampling_per_token_logps"] = sampled
            if seams.corrects_sampling(self):
                difference = (columns["old_per_token_logps"] - sampled) * batch.policy_mask
                ratio = columns["importance_sampling_ratio"] = seams.sampling_ratio(self, difference)
                self._log_metrics("train", seams.sampling_metrics(difference, ratio, batch.policy_mask))
        parts = self.args.steps_per_generation
        count = -(-max(self.world.agree(len(batch)), 1) // parts) * parts
        tokenizer = self.processing_class
        rows = collate_rows(batch, columns, count, tokenizer.pad_token_id, tokenizer.eos_token_id)
        tokens = batch.policy_mask.sum().reshape(1)
        rows["num_items_in_batch"] = self.accelerator.gather(tokens).sum()
        return rows

    # ------------------------------------------------------------------ update

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        strategies.keep_gradients_sharded(self.accelerator, self.model_wrapped)
        if self._began is None:  # a session that trains nothing adds nothing
            self._evaluated_before, self._began = self._seconds["evaluation"], time.perf_counter()
        with self.phases("update"):
            loss = super().training_step(*args, **kwargs)
            self._loss_is_finite = self._loss_is_finite and bool(torch.isfinite(loss))
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The last look before the optimiser's step: a loss or a gradient that is not finite ends the run here, with
        the weights as they were. A loss scaler (float16) skips such steps by itself."""
        norm = super()._get_grad_norm(model, grad_norm)
        value = 0.0 if norm is None or getattr(self.accelerator, "scaler", None) is not None else float(norm)
        finite, self._loss_is_finite = self._loss_is_finite and math.isfinite(value), True
        if self.world.agree(int(not finite)):
            raise RunStopped(
                f"update {self.state.global_step + 1}: the loss or its gradient is not finite (gradient norm "
                f"{value:g}); nothing was changed or saved, and {last_good(self.args.output_dir)}. Look "
                "at this update's records for rewards out of range; lower learning_rate or set max_grad_norm"
            )
        return norm

    def _check_weights(self) -> None:
        if self.world.agree(int(not weights_are_finite(self.model))):
            raise RunStopped(
                f"after update {self.state.global_step} the weights are not finite; they were not saved, and "
                f"{last_good(self.args.output_dir)}. Lower learning_rate or set max_grad_norm"
            )

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """TRL's loss over sub-chunks of ``tokens_per_forward``: memory does not grow with the number of turns."""
        if return_outputs:
            raise ValueError("AlignOPSDTrainer does not return outputs")
        *earlier, last = chunks = self._sub_chunks(inputs)
        most = self.world.agree(max(len(chunk["advantages"]) for chunk in chunks))
        done: torch.Tensor | float = 0.0
        with seams.filled_up(self, most):
            for chunk in earlier:
                with strategies.unsynchronised(self.accelerator, model):
                    loss = self._chunk_loss(model, chunk)
                    strategies.backward(self.accelerator, loss)
                done = done + loss.detach()
            return self._chunk_loss(model, last) + done

    def _sub_chunks(self, inputs: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        every = torch.ones(len(inputs["advantages"]), dtype=torch.bool)
        live = live_rows(inputs) if self._needs_live_rows_only(inputs) else every
        return sub_chunks(inputs, live, self.args.rows_per_forward, self.args.tokens_per_forward, self.world.agree)

    def _needs_live_rows_only(self, inputs: dict[str, torch.Tensor]) -> bool:
        """Whether a row without advantage adds exactly nothing to loss and gradient."""
        targets = any(name.startswith(TARGET) for name in inputs)
        return self.args.skip_zero_advantage and self.beta == 0.0 and self.entropy_coef == 0.0 and not targets

    def _chunk_loss(self, model: Any, chunk: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = seams.policy_loss(self, model, chunk)
        return loss + self._extra_loss(model, chunk)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Keeps the live log-probs of TRL's own forward for `_extra_loss`."""
        with seams.head_on_labels(self.accelerator.device):
            output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._live = output if torch.is_grad_enabled() else None
        return output

    def _extra_loss(self, model: Any, chunk: dict[str, torch.Tensor]) -> torch.Tensor | float:
        """The method's auxiliary loss and the entropy bonus, as means over the same global tokens as TRL's loss."""
        targets = {name.removeprefix(TARGET): value for name, value in chunk.items() if name.startswith(TARGET)}
        if not targets and self.entropy_coef == 0.0:
            return 0.0
        log_probs, entropies, _ = self._live
        per_token = -self.entropy_coef * entropies
        if VOCABULARY in targets:
            targets["vocabulary"] = seams.live_logits(self, model, chunk, targets[VOCABULARY])
        if targets:
            old = chunk.get("old_per_token_logps", log_probs.detach())
            coefficient = self.method.coefficients(self._round).auxiliary
            per_token = per_token + coefficient * self.method.auxiliary(targets, log_probs, old)
        mask = chunk["completion_mask"] * chunk["tool_mask"]
        return (per_token * mask).sum() / seams.token_normalizer(self, chunk)

    # ------------------------------------------------------------------ evaluation

    @seams.with_sampler_awake
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, None, None]:
        """Plays the rows' episodes and logs their outcome; there is no loss to report. Training's own random state is
        left as it was."""
        process = self.accelerator.process_index
        tasks = [row["task_id"] for row in inputs]
        places = siblings_before(gather_object([tasks]), process)
        seeds = [episode_seed(task, 0, place) for task, place in zip(tasks, places, strict=True)]
        skills = self.method.skills_in_evaluation
        with (
            seams.sampling(self, self.args.eval_temperature, self.max_completion_length),
            evaluating(self.model, episode_seed(" ".join(tasks), 0, process)),
        ):
            trajectories = self._player(skills, skills).play(inputs, seeds, tasks)
        self._log_metrics("eval", rollout_metrics(trajectories))
        return torch.zeros((), device=self.accelerator.device), None, None

    @seams.with_sampler_awake
    def evaluate_panel(
        self, panel: TaskPanel, skills: bool = False, temperature: float | None = None, seed: int = 0
    ) -> EvaluationResult:
        """Plays a panel once with the current policy, spread over all processes.

        Args:
            skills: put the skill into the policy's own prompt (the starred rows).
            temperature: of sampling; the config's ``eval_temperature`` by default.
            seed: of the sampling's random numbers; the training's own random state is left as it was.

        Returns:
            The same on every process.
        """
        temperature = self.args.eval_temperature if temperature is None else temperature
        if skills and self.skill_bank is None:
            raise ValueError("skills=True needs a skill_bank")
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        started = time.perf_counter()
        self._environments()
        with (
            self._bar(len(panel.rows[process::processes]), f"panel {panel.name}") as progress,
            seams.sampling(self, temperature, self.max_completion_length),
        ):
            played = play_panel(
                self._player(skills, skills, progress),
                self.model,
                panel,
                slots=self._environment_slots,
                seed=seed,
                process=process,
                processes=processes,
            )
        outcomes = gather_object([Outcome.of(one) for one in played])
        tally = Tally.total(gather_object([Tally.of(played)]))
        self._seconds["evaluation"] += time.perf_counter() - started
        if tally.usable == 0:
            raise RunStopped(f"panel {panel.name}: no episode could be played. The first reason: {tally.message}")
        return summarise(panel, outcomes, skills=skills, temperature=temperature, seed=seed)

    # ------------------------------------------------------------------ logging and state

    def _log_round(self, trajectories: list[Trajectory], batch: TurnBatch, credit: Credit, step: int) -> None:
        self._log_metrics("train", rollout_metrics(trajectories) | credit.metrics)
        self._log_metrics("train", self._environment_counters.take())
        self._log_metrics("train", {f"seconds/{name}": value for name, value in self.phases.take().items()})
        means = credit.advantages.sum(1) / batch.policy_mask.sum(1).clamp(min=1)
        place = {id(turn): row for row, turn in enumerate(batch.turns)}
        first = [place.get(id(one.turns[0])) if one.turns else None for one in trajectories]
        values = means.tolist()
        shown = gather_object([0.0 if row is None else values[row] for row in first])
        seams.log_samples(self, "advantages", shown)
        if self.args.save_trajectories:
            self._write_records(turn_records(trajectories, step, batch, credit.trace, self._run_id), credit.trace, step)

    def _write_records(self, records: list[dict[str, Any]], trace: Mapping[str, Any], step: int) -> None:
        count = self._written[1] + 1 if self._written[0] == step else 1  # several rounds make up an update if they must
        self._written = step, count
        part = f"_round{count:03d}" if count > 1 else ""
        name = f"step_{step:06d}{part}_rank{self.accelerator.process_index:03d}.parquet"
        schema = record_schema(merge_types(gather_object([trace_types(trace)])))
        write_records(Path(self.args.output_dir) / "trajectories" / name, records, schema)

    @property
    def _run_id(self) -> str | None:
        return self.run_folder.id if self.run_folder is not None else None

    def _log_metrics(self, mode: str, metrics: Mapping[str, float]) -> None:
        for name, value in self.world.reduce(metrics).items():
            seams.log_value(self, mode, name, value)

    def _show_phase(self, name: str) -> None:
        if not self.args.disable_tqdm and self.is_local_process_zero() and name != "rollout":
            show_status(f"update {self.state.global_step + 1}/{self.state.max_steps}: {name.replace('_', ' ')}")

    def _bar(self, total: int, title: str) -> Any:
        return Bar(total, title, disable=self.args.disable_tqdm or not self.accelerator.is_local_main_process)

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
            )
        try:
            self._begin(self.run_folder)
            return super().train(resume_from_checkpoint=self.run_folder.resume, **kwargs)
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
        if not self.world.agree(int(is_whole(self._checkpoint()))):
            self._save_checkpoint(self.model, trial=None)

    def _checkpoint(self) -> Path:
        return Path(self.args.output_dir) / f"{PREFIX}-{self.state.global_step}"

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As in TRL. The mark of a whole checkpoint goes first, if it is written again, and comes last."""
        self._check_weights()
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
        with contextlib.nullcontext() if checkpoint else strategies.whole_state_dict(self.accelerator):
            super().save_model(output_dir, _internal_call)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL's card plus what AlignOPSD adds: method, settings, environment facts."""
        super().create_model_card(*args, **kwargs)
        if not self.is_world_process_zero():
            return
        path = Path(self.args.output_dir) / "README.md"
        settings = {name: getattr(self.args, name) for name in card_fields()}
        text = path.read_text(encoding="utf-8")
        section = "\n## AlignOPSD settings\n\n```json\n" + json.dumps(settings, indent=2, default=str) + "\n```\n"
        path.write_text(text + section, encoding="utf-8")

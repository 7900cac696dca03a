"""AlignOPSDConfig: TRL's GRPOConfig, the method's options, and the options of episodes with many turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field, FilePath, InstanceOf
from transformers.debug_utils import DebugOption
from transformers.trainer_pt_utils import AcceleratorConfig
from trl import GRPOConfig

from alignopsd_trl.common.options import (
    Count,
    Positive,
    PositiveCount,
    Share,
    Size,
    Temperature,
    as_mapping,
    option,
    path_as_given,
    settle,
    whole_path,
)
from alignopsd_trl.methods.align_opsd.options import AlignOPSDOptions
from alignopsd_trl.rollout.options import PlayOptions
from alignopsd_trl.skills import skill_budget

TOKEN_MEAN_LOSSES = ("dapo", "cispo", "vespo")
BEST, VARIANCE = "success_or_score", "variance_over_episodes"
"""The number of an evaluation that chooses checkpoints by default: success, or the score where success is unknown; and
its variance."""
SEED = Annotated[int, Field(ge=0, le=2**32 - 1)]
STEPS = Annotated[float, Field(ge=0, le=2**31)]
JSON_FILE = dict[str, Any] | FilePath | None
_RULES: tuple[tuple[Any, str], ...] = (
    (Size, "learning_rate weight_decay max_grad_norm beta epsilon warmup_steps entropy_coef eval_delay"),
    (Size, "label_smoothing_factor vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg"),
    (Size | None, "epsilon_high delta neftune_noise_alpha"),
    (Size | None, "vllm_importance_sampling_clip_min vllm_importance_sampling_clip_max"),
    (STEPS, "logging_steps"),
    (Annotated[float, Field(gt=0, le=2**31)], "save_steps"),
    (STEPS | None, "eval_steps"),
    (Positive, "adam_epsilon num_train_epochs repetition_penalty vllm_server_timeout"),
    (Positive | None, "off_policy_mask_threshold"),
    (Annotated[float, Field(ge=0, lt=1)], "adam_beta1 adam_beta2"),
    (Temperature, "temperature"),
    (list[Annotated[float, Field(strict=True)]] | None, "reward_weights"),
    (PositiveCount, "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps"),
    (PositiveCount, "num_iterations vllm_tensor_parallel_size ref_model_sync_steps"),
    (PositiveCount | None, "generation_batch_size steps_per_generation save_total_limit vllm_max_model_length"),
    (PositiveCount | None, "max_tool_calling_iterations torch_empty_cache_steps dataloader_prefetch_factor"),
    (PositiveCount | None, "ddp_bucket_cap_mb num_completions_to_print eval_accumulation_steps"),
    (Annotated[int, Field(ge=2)], "num_generations"),
    (Share, "top_p ref_model_mixup_alpha"),
    (Share | None, "min_p"),
    (Annotated[float, Field(gt=0, le=1)], "vllm_gpu_memory_utilization"),
    (Count, "top_k"),
    (Annotated[int, Field(ge=0, le=1024)], "dataloader_num_workers"),
    (Literal["token", "sequence"], "importance_sampling_level"),
    (PositiveCount | Literal["auto"] | None, "pad_to_multiple_of"),
    (SEED, "seed"),
    (SEED | None, "data_seed"),
    (Annotated[int, Field(gt=0, le=10**9)], "ddp_timeout"),
    (Annotated[int, Field(ge=1, le=65535)], "vllm_server_port vllm_group_port"),
    (Literal["server", "colocate"], "vllm_mode"),
    (Literal["vllm", "transformers"], "vllm_model_impl"),
    (Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"], "vllm_importance_sampling_mode"),
    (Literal["all", "non_padding", "no"] | bool, "include_num_input_tokens_seen"),
    (Literal["", "underflow_overflow", "tpu_metrics_debug"] | list[DebugOption] | None, "debug"),
    (Literal["group", "none"] | bool, "scale_rewards"),  # TRL's other form
    (str | bool | None, "resume_from_checkpoint fsdp"),
    (str | list[str], "report_to"),
    (InstanceOf[AcceleratorConfig] | JSON_FILE, "accelerator_config"),
    (JSON_FILE, "deepspeed fsdp_config"),
)
INHERITED_RULES: dict[str, Any] = {name: kind for kind, names in _RULES for name in names.split()}
"""Types with the limits of TRL's and transformers' fields; this package's own fields define theirs."""


ONLY: dict[str, tuple[Any, str]] = {
    "top_entropy_quantile": (1.0, "takes its threshold per micro-batch, which sub-chunks would change"),
    "router_aux_loss_coef": (0.0, "is a mean per micro-batch, which sub-chunks would change"),
    "neftune_noise_alpha": (0.0, "adds noise to the log-probs of teacher and policy, which must not differ by it"),
    "use_adaptive_entropy": (False, "is not supported over turn rows, where entropy_coef is"),
    "multi_objective_aggregation": ("sum_then_normalize", "knows no single outcome, whose advantage turns share"),
    "remove_unused_columns": (False, "would take the task's columns away from reset()"),
    "use_liger_kernel": (False, "computes a loss of its own, which does not know turn rows"),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), (False, "would cast weights that training goes on with")),
}
"""The only supported value of some of TRL's fields, and why."""

OTHERS_OF_GENERATION = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    **dict.fromkeys(("max_new_tokens", "max_length", "max_tokens"), "max_completion_length"),
    **dict.fromkeys(("num_return_sequences", "n"), "num_generations"),
}
"""Names that ``generation_kwargs`` may not give, and the fields that say the same."""

NARROWING = ("presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens")
"""Names in ``generation_kwargs`` by which vLLM changes a response's probabilities."""


@dataclass
class AlignOPSDConfig(AlignOPSDOptions, GRPOConfig):
    """Configuration of [`AlignOPSDTrainer`]: TRL's options, the method's ([`AlignOPSDOptions`]), and those of episodes.

    Three of TRL's arguments change their meaning, because an episode has many turns: batch sizes and
    `num_generations` count *trajectories*; `max_completion_length` bounds *one turn's* response, not the episode;
    a turn is a row of its own in the update. Defaults of the method's fields are the paper's values (tables of its
    appendices); the different values of the authors' launchers are presets of the recipes.

    Raises:
        ValueError: for values that are out of range or in conflict; names field, value and remedy.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS + ["method_options", "vllm_engine_options"]

    if TYPE_CHECKING:  # None is read at construction alone: the base classes set these
        output_dir: str  # ty: ignore[incompatible-mutable-override]
        generation_batch_size: int = 0  # ty: ignore[incompatible-mutable-override]
        steps_per_generation: int = 0  # ty: ignore[incompatible-mutable-override]
        num_generations: int = 0  # ty: ignore[incompatible-mutable-override]

    # TRL's fields whose defaults do not suit an update over turn rows
    max_completion_length: PositiveCount = option(  # ty: ignore[incompatible-mutable-override]
        512, "Maximum tokens of one turn's response (not of the episode)."
    )
    disable_dropout: bool = option(True, "Disable dropout: teacher and student log-probs must not differ by noise.")

    num_generations_eval: PositiveCount | None = option(1, "Episodes per task of `eval_dataset`; 1 for success rates.")

    # Method
    method: str = option("align_opsd", "Row of the results table to train: a name registered in methods/.")
    method_options: dict[str, Any] | str | None = option(
        None, 'Options of a baseline, as JSON, e.g. \'{"aggregate": "turn"}\'; see the method\'s class.'
    )

    # Teacher
    teacher_model_kind: Literal["live", "base"] = option(
        "live", "Weights of the privileged view: 'live' (the policy's in the round) or 'base' (those before training)."
    )
    privileged_siblings: Count = option(
        0,
        "Siblings that the teacher plays with the skill in its prompt, trained on the ordinary prompt. 0: none.",
    )
    privileged: str | None = option(
        None,
        "What the teacher reads at each turn, known after play, in place of the skill bank: "
        "'next_observation', 'feedback' or module:function (docs/trainer.md).",
    )

    # Rollout
    max_prompt_length: PositiveCount = option(
        4096, "Maximum tokens of a rendered prompt. Older history is dropped first; never the task."
    )
    history: Literal["window", "conversation"] = option(
        "window",
        "What a turn's prompt shows of the past: a 'window' of the last turns, as in the paper, or the "
        "whole 'conversation' (docs/conversations.md).",
    )
    past_thinking: Literal["template", "keep"] = option(
        "template", "Thinking of earlier responses in a conversation: 'keep' it, or as the chat 'template' does."
    )
    merge_rows: bool = option(
        True, "In a conversation, turns that continue the turn before share a row of the update, to the same gradient."
    )
    thinking_tags: list[str] = field(
        default_factory=lambda: ["<think>", "</think>"],
        metadata={"help": "Between which the model thinks, e.g. [THINK] [/THINK]. Environments are shown <think>."},
    )
    max_turns: PositiveCount | None = option(None, "Turns per episode at most. None: the environment's own limit.")
    skill_tokens: PositiveCount | None = option(
        None, "Tokens of the skill block. None: min(512, max_prompt_length // 4)."
    )
    teacher_max_completion_length: PositiveCount | None = option(
        None, "Maximum tokens of the privileged thinking (2048 in the release). None: as the student."
    )
    eval_temperature: Temperature = option(0.4, "Sampling temperature of evaluations (0.4 in the paper).")
    environment_time_limit: Positive = option(
        60.0, "Seconds for one call of an environment or a skill function; a longer one ends its episode as an error."
    )
    save_trajectories: bool = option(True, "Write trajectories with credit and tokens as parquet under output_dir.")

    max_failed_share: Share = option(0.5, "Share of failed episodes over three rounds above which the run ends.")
    overwrite_output_dir: bool = option(False, "Remove the run that output_dir holds, which is refused otherwise.")
    self_check: bool = option(
        True,
        "Compare, in the first rounds, signals that must be equal (encoder, reference, teacher, sampler, "
        "shared prefixes), and stop if they are not. Later rounds only log the cheap ones.",
    )

    # Memory
    tokens_per_forward: PositiveCount = option(
        16384, "Padded tokens of one forward, at most, in scoring and in the update, whose memory it bounds."
    )
    skip_zero_advantage: bool = option(
        True,
        "Leave out what can't change the update: rows without advantage that no auxiliary loss teaches (with beta=0 "
        "and no entropy bonus), and scores and privileged thoughts that only weigh an advantage of 0. Metrics are "
        "then means over what is left.",
    )
    teach_solved: bool = option(
        True,
        "Whether the teacher is also asked where all siblings won and none has an advantage. False: such turns have no "
        "thoughts of the teacher, no scores and no auxiliary loss; they have nothing to learn.",
    )
    scale_steps: bool = option(
        False,
        "Shorten an optimiser step, by its learning rate, to the share of its tokens that have an advantage or are "
        "taught. Adam's steps are as long for a single row.",
    )
    spread_categories: bool = option(
        False,
        "Order an epoch's tasks so that each round has its share of each value of the dataset column category, where "
        "there is one and shuffle_dataset is on. By default the order is TRL's, of chance.",
    )
    share_prefixes: bool = option(
        True, "Encode a prompt once for all responses scored under it; a warning says where the model can't do that."
    )

    # Sampling with a colocated vLLM
    vllm_engine_options: dict[str, Any] | str | None = option(
        None,
        "Options of a colocated vLLM's engine, as JSON, over all others, e.g. "
        '\'{"max_num_seqs": 64, "dtype": "float16"}\'.',
    )

    # Outcome advantage
    scale_rewards: Literal["group", "none"] = option(  # ty: ignore[incompatible-mutable-override]
        "group", "Divide the centred reward by the group's deviation ('group') or do not ('none')."
    )
    group_statistics: Literal["trajectory", "turn"] = option(
        "trajectory", "Population of the group's mean and deviation: each 'trajectory' once, or each 'turn'."
    )
    invalid_action_penalty: Size = option(0.0, "Deduction for an invalid action, as a residual beside the credit.")

    def __post_init__(self) -> None:
        settle(self, INHERITED_RULES)
        given = self.accelerator_config
        if isinstance(given, dict) and (unknown := sorted(set(given) - set(vars(AcceleratorConfig())))):
            raise ValueError(f"accelerator_config[{unknown[0]!r}] is no option of accelerate's; leave it out")
        if self.generation_batch_size is None:  # else TRL's check comes first and names no numbers that work
            self._check_groups(self.steps_per_generation or self.gradient_accumulation_steps)
        if self.bf16 is None:  # TRL's default is bfloat16 on CPUs too, where it is slow
            itself = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)  # no T4
            self.bf16 = not self.fp16 and not self.use_cpu and itself
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # without an accelerator pinning is useless, and torch warns
        follows = self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        if self.load_best_model_at_end or self.save_strategy == "best" or follows:
            self.metric_for_best_model = self.metric_for_best_model or BEST
        super().__post_init__()
        if follows:
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode, **as_mapping(self.lr_scheduler_kwargs)}
        if not str(self.output_dir).strip():
            raise ValueError(f"output_dir={self.output_dir!r} is empty; name a folder")
        self.output_dir = whole_path(self.output_dir)
        self._check_groups(self.steps_per_generation)
        self._check_supported()
        PlayOptions.of(self)  # raises for invalid tags
        self._check_conversation()
        self._check_engine()

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields in the form that is saved, with the output folder as the user wrote it."""
        return {**super().to_dict(), "output_dir": path_as_given(self.output_dir)}

    def _check_groups(self, steps: int) -> None:
        local, siblings = self.per_device_train_batch_size * steps, self.num_generations
        if siblings and local % siblings:
            raise ValueError(
                f"Sibling groups must be whole on each process: per_device_train_batch_size="
                f"{self.per_device_train_batch_size} x steps_per_generation={steps} = {local} trajectories per process "
                f"is no multiple of num_generations={siblings}. Make it {-(-local // siblings) * siblings}, for "
                f"example with per_device_train_batch_size={siblings}."
            )

    def _check_supported(self) -> None:
        if self.loss_type not in TOKEN_MEAN_LOSSES:
            raise ValueError(
                f"loss_type={self.loss_type!r}: choose one of {', '.join(map(repr, TOKEN_MEAN_LOSSES))} (others take a "
                "mean over rows or micro-batches, which dummy rows and sub-chunks would change)"
            )
        for name, (only, why) in ONLY.items():
            if (value := getattr(self, name)) not in (only, None):
                raise ValueError(f"{name}={value!r} {why}; set {name}={only!r}")
        for name in as_mapping(self.generation_kwargs):
            if name in OTHERS_OF_GENERATION:
                raise ValueError(f"generation_kwargs[{name!r}]: set {OTHERS_OF_GENERATION[name]} instead")
            if name in ("do_sample", "num_beams", "num_beam_groups"):
                raise ValueError(f"generation_kwargs[{name!r}]: a turn is one response that is sampled; leave it out")
        chooses = self.metric_for_best_model or ""
        if chooses.endswith(BEST) and not self.greater_is_better:
            raise ValueError("greater_is_better=False would keep the checkpoint with the least success; leave it out")
        if self.privileged_siblings >= self.num_generations:
            raise ValueError(
                f"privileged_siblings={self.privileged_siblings} leaves no ordinary sibling of num_generations="
                f"{self.num_generations}; set it to {self.num_generations - 1} or less"
            )

    def _check_conversation(self) -> None:
        if self.history == "window":
            return
        rules = {"loss_type": "vespo", "importance_sampling_level": "sequence"}
        whole = [f"{name}={value!r}" for name, value in rules.items() if getattr(self, name) == value]
        if self.off_policy_mask_threshold is not None:
            whole.append(f"off_policy_mask_threshold={self.off_policy_mask_threshold}")
        if self.merge_rows and whole:
            raise ValueError(
                f"merge_rows=True would change what {' and '.join(whole)} sums over, from a turn to all turns of a "
                "row; set merge_rows=False"
            )

    def _check_engine(self) -> None:
        if self.use_vllm and self.vllm_importance_sampling_correction and (narrowing := self.narrows_sampling):
            raise ValueError(
                f"{narrowing[0]} with use_vllm=True: the sampler's log-probs are then of fewer tokens than the "
                "policy's, and importance ratios wrong; leave it out, or set vllm_importance_sampling_correction=False"
            )
        if (engine := self.engine_options) is None:
            return
        tokens, sequences = engine["max_num_batched_tokens"], engine["max_num_seqs"]
        if tokens < sequences:
            raise ValueError(
                f"vllm_engine_options: max_num_batched_tokens={tokens} is less than the {sequences} responses sampled "
                f"at once, each of which takes a token a step; set it to {sequences} or more, or max_num_seqs to "
                f"{tokens} or less"
            )
        window = self._longest_turn
        if engine["max_model_len"] < window:
            raise ValueError(
                f"vllm_max_model_length={engine['max_model_len']} can't hold a turn: max_prompt_length="
                f"{self.max_prompt_length} and a response make {window} tokens; set it to {window}, or leave it out"
            )

    @property
    def steps_per_round(self) -> Fraction:
        """Returns the optimiser steps of a rollout round."""
        return steps_per_round(self.steps_per_generation, self.num_iterations, self.gradient_accumulation_steps)

    @property
    def narrows_sampling(self) -> list[str]:
        """Returns the settings by which an engine samples from other probabilities than the policy's own."""
        whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "vllm_structured_outputs_regex": ""}
        given, others = {name: getattr(self, name) for name in whole}, as_mapping(self.generation_kwargs)
        found = [f"{name}={value!r}" for name, value in given.items() if value not in (None, whole[name])]
        return found + [f"generation_kwargs[{name!r}]" for name in NARROWING if name in others]

    @property
    def episodes_at_once(self) -> int:
        """Returns the maximum of environments that a process keeps open, in a round of training or an evaluation."""
        return max(self.per_device_train_batch_size * self.steps_per_generation, self.per_device_eval_batch_size)

    @property
    def engine_options(self) -> dict[str, Any] | None:
        """Returns the options of a colocated vLLM's engine that override TRL's; `None` without an engine. TRL's limit
        of responses sampled at once, the trajectories of a round, would make the reasoning traces of all their turns
        wait for one another; the cache may hold fewer."""
        if not self.use_vllm or self.vllm_mode != "colocate":
            return None
        sharing = self.per_device_train_batch_size * self.steps_per_generation * self.vllm_tensor_parallel_size
        given = as_mapping(self.vllm_engine_options)
        sequences = given.get("max_num_seqs", max(sharing, 256))
        limits = {"max_num_seqs": sequences, "max_num_batched_tokens": max(8192, sequences)}
        return limits | {"max_model_len": self.vllm_max_model_length or self._longest_turn} | given

    @property
    def _longest_turn(self) -> int:
        return self.max_prompt_length + max(self.max_completion_length, self.teacher_max_completion_length or 0)

    @property
    def merges_rows(self) -> bool:
        """Returns whether consecutive turns that extend each other become one row."""
        return self.history == "conversation" and self.merge_rows

    @property
    def skill_budget(self) -> int:
        """Returns the token limit of the skill block (skill bank rules, length budget)."""
        return self.skill_tokens or skill_budget(self.max_prompt_length)


def steps_per_round(steps_per_generation: int, num_iterations: int, gradient_accumulation_steps: int) -> Fraction:
    """Returns the optimiser steps of a rollout round: a round's mini-batches are passed ``num_iterations`` times, and
    ``gradient_accumulation_steps`` mini-batches make a step. Below 1, a step takes several rounds."""
    return Fraction(steps_per_generation * num_iterations, gradient_accumulation_steps)

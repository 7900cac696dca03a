"""Names the settings that are set and not read. `READ` says of each when a run reads it.

A recipe's setting counts as set if its user gave it, by flag or file; a field of [`AlignOPSDConfig`] in Python, if it
differs from the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers.training_args import OptimizerNames

from alignopsd_trl.checks.intended import Intended
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.offline import OFFLINE_MODEL
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.methods import Method
from alignopsd_trl.methods.align_opsd.method import AlignOPSD
from alignopsd_trl.methods.align_opsd.options import OPTION_NAMES

LAYERED = ("galore", "apollo")
"""What the names of optimisers begin with that treat some layers in another way."""

READ: tuple[tuple[str, str], ...] = (
    # the method
    (" ".join(OPTION_NAMES), "_own_options"),
    ("method_options", "_options"),
    ("max_sources aggregation aggregation_temperature alpha_max action_filter action_threshold", "rectify"),
    ("action_threshold", "action_filter!=none"),
    ("profile_temperature profile_distance boundary_quantile boundary_min boundary_max", "allocation=span|random"),
    ("min_span max_span", "allocation=span|random"),
    ("credit_mixing", "allocation=span|random|turn"),
    ("credit_temperature weighting density_cap band", "allocation!=none"),
    ("credit_temperature", "credit_spread=None"),
    ("density_cap", "weighting=capped"),
    ("band", "weighting=band"),
    ("auxiliary_coefficient gate_beta", "auxiliary_loss=alignment|sdar"),
    (" ".join(name for name in OPTION_NAMES if name.startswith("distribution_")), "auxiliary_loss=distribution"),
    ("privileged teach_solved share_prefixes", "_teacher"),
    ("teacher_model_kind teacher_max_completion_length", "_teacher_or_siblings"),
    ("skill_bank encoder skill_tokens", "_skills"),
    ("reward_weights", "_several_rewards"),
    # rounds and their tasks
    ("num_train_epochs", "max_steps=-1"),
    ("updates_per_round rows_per_step", "tasks_per_round"),
    ("rows_per_step", "updates_per_round=None max_turns!=None"),
    ("spread_categories", "shuffle_dataset _categories"),
    ("past_thinking merge_rows", "history=conversation"),
    ("max_tool_calling_iterations", "_tools"),
    ("train_sampling_strategy length_column_name data_seed", "_order"),
    # the update
    ("warmup_steps lr_scheduler_kwargs", "lr_scheduler_type!=constant"),
    ("adam_beta1 adam_beta2 adam_epsilon", "optim!=sgd|adagrad|rmsprop|adafactor"),
    ("optim_args", "optim!=adamw_torch|adamw_torch_fused|adafactor"),
    ("optim_target_modules", f"optim={'|'.join(one.value for one in OptimizerNames if one.value.startswith(LAYERED))}"),
    ("label_smoothing_factor label_names pad_to_multiple_of", "_rows"),
    ("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", "use_adaptive_entropy"),
    ("sapo_temperature_neg sapo_temperature_pos", "loss_type=sapo"),
    ("vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg", "loss_type=vespo"),
    ("use_bias_correction_kl", "beta"),
    ("ref_model_mixup_alpha ref_model_sync_steps", "sync_ref_model"),
    ("gradient_checkpointing_kwargs", "gradient_checkpointing"),
    ("bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage", "load_in_4bit"),
    ("model_revision", "_hub"),
    ("threads", "_cpu"),
    # sampling
    ("vllm_mode vllm_model_impl vllm_structured_outputs_regex vllm_importance_sampling_correction", "use_vllm"),
    ("vllm_engine_options vllm_enable_sleep_mode vllm_gpu_memory_utilization", "use_vllm vllm_mode=colocate"),
    ("vllm_max_model_length vllm_tensor_parallel_size", "use_vllm vllm_mode=colocate"),
    ("vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout", "use_vllm vllm_mode=server"),
    ("vllm_group_port", "use_vllm vllm_mode=server"),
    ("vllm_importance_sampling_mode", "use_vllm vllm_importance_sampling_correction"),
    ("vllm_importance_sampling_clip_max", "use_vllm vllm_importance_sampling_correction"),
    ("vllm_importance_sampling_clip_min", "use_vllm vllm_importance_sampling_correction"),
    ("cache_implementation", "use_vllm=False"),
    # evaluations, checkpoints, logs
    ("prediction_loss_only include_for_metrics batch_eval_metrics eval_do_concat_batches", "_batches"),
    ("eval_use_gather_object eval_accumulation_steps", "_batches"),
    ("num_generations_eval", "_evaluates"),
    ("eval_steps", "eval_strategy=steps"),
    ("eval_delay", "eval_strategy!=no"),
    ("save_steps save_rounds", "save_strategy=steps"),
    ("save_total_limit save_only_model", "save_strategy!=no"),
    ("logging_steps", "logging_strategy=steps"),
    ("metric_for_best_model greater_is_better", "_chooses"),
    ("num_completions_to_print log_unique_prompts", "log_completions"),
    ("log_multimodal", "_pictures"),
    ("run_name project trackio_space_id trackio_bucket_id trackio_static_space_id", "report_to"),
    ("hub_strategy hub_always_push hub_revision", "push_to_hub"),
    ("trajectories_hub_repo", "save_trajectories"),
)
"""Settings, and the conditions on others under which a run reads them: on, ``=`` one of some, ``!=`` none of them. A
condition ``_x`` is one of `WHY_NOT`."""

WHY_NOT = {
    "_own_options": "method={method!r} has others",
    "_options": "method={method!r} has none",
    "_teacher": "method={method!r} asks no teacher",
    "_teacher_or_siblings": "method={method!r} asks no teacher",
    "_skills": "nothing reads skills with method={method!r}",
    "_several_rewards": "scale_rewards='group' divides a single reward by its deviation",
    "_categories": "the tasks have no column category",
    "_tools": "the environment has no tools in TRL's form",
    "_order": "seed, shuffle_dataset and spread_categories order the tasks",
    "_rows": "the loss of turn rows knows no such thing",
    "_hub": "the model is a folder",
    "_cpu": "the run is on the accelerator",
    "_batches": "an evaluation plays episodes",
    "_evaluates": "eval_strategy is 'no'",
    "_chooses": "load_best_model_at_end is off, and nothing else chooses by it",
    "_pictures": "prompts are text",
}
"""Conditions that are no setting, and what is said where they don't hold. Those without a rule never hold."""


def _facts(run: Mapping[str, Any], method: Method) -> dict[str, Any]:
    """Returns the conditions that are no setting, as far as they may hold."""
    foreign = not type(method).__module__.startswith("alignopsd_trl.")  # a user's method may read any option
    model = run.get("model_name_or_path")
    chooses = "panel" not in run or run["load_best_model_at_end"] or _shown(run["save_strategy"]) == "best"
    return {
        "_own_options": foreign or isinstance(method, AlignOPSD),
        "_options": foreign or hasattr(method, "Options"),
        "_teacher": method.needs_teacher,
        "_teacher_or_siblings": method.needs_teacher or run["privileged_siblings"],
        "_several_rewards": len(run["reward_weights"] or ()) > 1 or run["scale_rewards"] == "none",
        "_hub": model and not (model == OFFLINE_MODEL or Path(resolve_model(model)).expanduser().is_dir()),
        "_cpu": run["use_cpu"] or not torch.accelerator.is_available(),
        "_evaluates": "panel" not in run or run["eval_on_start"] or _shown(run["eval_strategy"]) != "no",
        "_chooses": chooses or _shown(run["lr_scheduler_type"]) in ("reduce_lr_on_plateau", "greedy"),
    }


def unread(given: Mapping[str, Any], run: Mapping[str, Any], method: Method) -> str:
    """Returns a note that names the settings which are set and not read, or an empty text.

    Args:
        given: those that are set.
        run: all settings, and ``_skills``, ``_categories`` and ``_tools``: whether the run has them.
    """
    run, found = {**run, **_facts(run, method)}, dict[str, str]()
    for names, conditions in READ:
        failed = [one for one in conditions.split() if not _holds(one, run)]
        for name in names.split() if failed else ():
            if given.get(name) not in (None, [], {}) and name not in found:
                found[name] = f"{name}={_shown(given[name])!r}, since {_reason(failed[0], run)}"
    return f"set and not read: {'; '.join(found.values())}" if found else ""


def _holds(condition: str, run: Mapping[str, Any]) -> bool:
    name, equal, values = condition.partition("=")
    value = _shown(run.get(name.removesuffix("!")))
    return (str(value) in values.split("|")) != name.endswith("!") if equal else bool(value)


def _reason(condition: str, run: Mapping[str, Any]) -> str:
    name = condition.partition("=")[0].removesuffix("!")
    return WHY_NOT[name].format(**run) if name in WHY_NOT else f"{name}={_shown(run[name])!r}"


def _shown(value: Any) -> Any:
    return getattr(value, "value", value)


def not_read(run: Intended) -> str:
    """Does the same as `unread` for a trainer in Python."""
    usual = {one.name: one.default for one in fields(AlignOPSDConfig)}
    given = {name: getattr(run.args, name) for name in usual if getattr(run.args, name) != usual[name]}
    skills = run.skill_bank is not None or run.privileged is not None
    facts = {"_skills": skills, "_categories": "category" in (run.columns or ()), "_tools": not run.own_environment}
    return unread(given, {**vars(run.args), **facts}, run.method)

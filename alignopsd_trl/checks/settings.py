"""Checks the settings that belong to TRL and transformers: what a run would meet only after it has played a round."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import GenerationConfig, Trainer, get_scheduler

from alignopsd_trl.common.options import as_mapping
from alignopsd_trl.config import AlignOPSDConfig

Reads = Callable[[AlignOPSDConfig], Any]


def _never(args: AlignOPSDConfig) -> bool:
    return False


UNREAD: tuple[tuple[str, Reads, str], ...] = (
    ("label_smoothing_factor label_names", _never, "the loss of turn rows does not read it"),
    ("entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target", _never, "use_adaptive_entropy is off"),
    ("pad_to_multiple_of", _never, "turn rows are as long as the longest of them"),
    ("train_sampling_strategy length_column_name", _never, "shuffle_dataset and spread_categories order the tasks"),
    (
        "prediction_loss_only include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object "
        "eval_accumulation_steps",
        _never,
        "an evaluation plays episodes",
    ),
    ("sapo_temperature_neg sapo_temperature_pos", _never, "loss_type='sapo' is not supported"),
    (
        "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg",
        lambda args: args.loss_type == "vespo",
        "loss_type is not 'vespo'",
    ),
    ("use_bias_correction_kl", lambda args: args.beta, "beta is 0"),
    ("ref_model_mixup_alpha ref_model_sync_steps", lambda args: args.sync_ref_model, "sync_ref_model is off"),
    ("num_completions_to_print log_unique_prompts", lambda args: args.log_completions, "log_completions is off"),
)
"""Settings that change nothing, unless a run reads them; and why."""


def changes_nothing(args: AlignOPSDConfig) -> str:
    """Returns a note that names the settings which differ from their defaults and change nothing, or an empty text."""
    usual = {one.name: one.default for one in fields(AlignOPSDConfig)}
    idle = [
        f"{name}={value!r} ({why})"
        for names, reads, why in UNREAD
        for name in names.split()
        if (value := getattr(args, name)) not in (None, usual[name], []) and not reads(args)
    ]
    return f"these settings change nothing here: {', '.join(idle)}; leave them out" if idle else ""


def check_settings(args: AlignOPSDConfig, elsewhere: bool = False) -> None:
    """Makes what transformers makes of these settings when training begins, for a model of one weight.

    Args:
        elsewhere: the run is planned for another machine, which may have a GPU and several processes.

    Raises:
        ValueError: names the setting, what is wrong and the remedy.
    """
    if not elsewhere:
        _check_machine(args)
    accelerator: Any = args.accelerator_config
    for name in ("dispatch_batches", "split_batches"):
        if getattr(accelerator, name):
            raise ValueError(f"accelerator_config={{{name!r}: true}} would cut sibling groups apart; leave it out")
    with _named(args, "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor"):
        DataLoader(
            [0],  # ty: ignore[invalid-argument-type]
            num_workers=args.dataloader_num_workers,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
    if args.sync_ref_model and not args.beta:
        raise ValueError("sync_ref_model=True moves a reference model, which beta=0 has not; set beta, or leave it out")
    _check_generation(args)
    with _named(args, "optim", "optim_args", "optim_target_modules"):
        layers: Any = torch.nn.Module()
        layers.linear = torch.nn.Linear(1, 1)  # GaLore and others look for layers by name
        kind, given = Trainer.get_optimizer_cls_and_kwargs(args, layers)
    if args.deepspeed is None:  # whose file may bring both
        _check_schedule(args, kind, given)


def _check_machine(args: AlignOPSDConfig) -> None:
    if args.fp16 and (args.use_cpu or not torch.accelerator.is_available()):
        raise ValueError("fp16=True needs a GPU, and this run has none; leave it out, or set bf16=True")
    if args.fsdp and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        raise ValueError(
            f"fsdp={args.fsdp!r} needs several processes; leave it out, and launch with "
            "accelerate launch --config_file $(alignopsd --files fsdp2)"
        )


def _check_generation(args: AlignOPSDConfig) -> None:
    given = as_mapping(args.generation_kwargs)
    if not args.use_vllm and (unknown := sorted(set(given) - set(vars(GenerationConfig())))):
        raise ValueError(f"generation_kwargs[{unknown[0]!r}] is no option of transformers' generate; leave it out")
    if "stop_strings" in given:
        raise ValueError("generation_kwargs['stop_strings'] ends no response here; leave it out")
    with _named(args, "generation_kwargs", "cache_implementation"):
        options = {} if args.use_vllm else given
        GenerationConfig(**options, cache_implementation=args.cache_implementation).validate(strict=True)


def _check_schedule(args: AlignOPSDConfig, kind: Any, given: dict[str, Any]) -> None:
    with _named(args, "optim", "optim_args"):
        optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **given)
    steps = max(args.max_steps, 1)
    with _named(args, "lr_scheduler_type", "lr_scheduler_kwargs", remedy="; give it in lr_scheduler_kwargs, as JSON"):
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=as_mapping(args.lr_scheduler_kwargs),
        )


@contextlib.contextmanager
def _named(args: AlignOPSDConfig, *names: str, remedy: str = "") -> Generator[None]:
    """Raises what a library refuses as `ValueError`, with the settings that it was given."""
    try:
        yield
    except (ImportError, TypeError, ValueError, RuntimeError, KeyError, AssertionError) as error:
        usual = {one.name: one.default for one in fields(AlignOPSDConfig)}
        said = {name: getattr(args, name) for name in names}
        given = [f"{name}={getattr(one, 'value', one)!r}" for name, one in said.items() if one != usual[name]]
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{', '.join(given) or names[0]}: {problem}{remedy}") from error

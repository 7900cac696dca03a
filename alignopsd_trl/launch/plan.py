"""``--plan``: what a recipe would run, and about how much memory it would take, without loading weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trl import ModelConfig

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.environments.base import Suite
from alignopsd_trl.environments.panel import TaskPanel
from alignopsd_trl.launch.arguments import RecipeArguments, planned_launch
from alignopsd_trl.launch.machine import Launch, check_launch
from alignopsd_trl.launch.memory import backbone, encoder_bytes, estimate, gpu_memory, sampler
from alignopsd_trl.launch.parts import check_parts, part_facts, print_config
from alignopsd_trl.methods import get_method


def print_plan(
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    model: ModelConfig,
    suite: Suite,
    panel: TaskPanel,
    changed: Mapping[str, Any] | None = None,
) -> None:
    """Checks what a run would, then prints rows and tokens per update, memory estimate, panel, checksums and config.

    Args:
        changed: settings that differ from the preset; marked in the list of all.

    Raises:
        ValueError: for whatever would keep the run from starting.
    """
    launch = planned_launch(recipe.plan_for)
    check_launch(launch, args, installed=False)
    trajectories = args.per_device_train_batch_size * args.steps_per_generation * launch.processes
    turns = args.max_turns or suite.factory().max_turns
    tasks = check_parts(recipe, args, model, suite, panel, trajectories // args.num_generations)
    checked = part_facts(recipe, args, model, suite, panel, tasks)
    rounds = f"{args.max_steps / float(args.steps_per_round):g}"
    facts = {
        "model": model.model_name_or_path,
        "method": args.method,
        "preset": recipe.preset,
        "launch": str(launch),
        "trajectories per round": trajectories,
        "optimiser steps per round": str(args.steps_per_round),
        "rounds": rounds if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs",
        "turn rows per round, at most": trajectories * turns,
        "tokens per turn, at most": args.max_prompt_length + args.max_completion_length,
        "trained tokens per round, at most": trajectories * turns * args.max_completion_length,
        "training tasks": len(tasks),
        "panel": f"{panel.name} of {panel.environment}: {len(panel)} tasks, checksum {panel.checksum}",
        "environment": json.dumps(dict(suite.description), default=str),
        **checked,
    }
    facts |= memory_facts(recipe, args, model, launch)
    width = max(map(len, facts)) + 2
    print("\n".join(f"{name:<{width}}{value}" for name, value in facts.items()))
    print_config(args, dict(changed or {}))


def memory_facts(recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, launch: Launch) -> dict[str, str]:
    """What ``--plan`` says about memory: on a GPU, of a colocated sampler, on the host, on disk.

    Raises:
        ValueError: if the sampler's share can't even hold its weights.
    """
    shape, gpu = backbone(model.model_name_or_path), gpu_memory(recipe.gpu_gib)
    method = get_method(args.method)(args)
    encoder = encoder_bytes(recipe.encoder if method.needs_encoder else None)
    found = estimate(
        shape,
        args,
        launch,
        trained_share=0.01 if model.use_peft else 1.0,
        weight_bytes=2 if model.dtype in ("bfloat16", "float16") else 4,
        encoder=encoder,
    )
    training = sum(found.training.values())
    parts = ", ".join(f"{name} {value:.1f}" for name, value in found.training.items() if value >= 0.05)
    facts = {"memory per GPU, estimate": f"{training:.1f} GiB for training ({parts})"}
    if encoder is None:
        facts["not counted"] = f"the encoder {recipe.encoder!r}: its size can't be told without loading it"
    engine = sampler(shape, args, gpu)
    if engine is None:
        where = "on the server's GPUs" if args.use_vllm else _own_sampler(found.training["prompts"])
        facts["sampler"] = where
    else:
        if engine.weights > engine.share:
            raise ValueError(
                f"vllm_gpu_memory_utilization={args.vllm_gpu_memory_utilization} of {gpu:.0f} GiB can't hold the "
                f"sampler's weights ({engine.weights:.1f} GiB); raise it, or vllm_tensor_parallel_size"
            )
        facts["sampler"] = (
            f"{engine.share:.1f} GiB of {gpu:.0f} (weights {engine.weights:.1f}, buffers {engine.buffers:.1f}, cache "
            f"{engine.cache:.1f}: {engine.sequences} full-length responses at once, {engine.limit} at most)"
        )
        training += 0.0 if args.vllm_enable_sleep_mode else engine.share
    if training > 0.95 * gpu:
        facts["DOES NOT FIT"] = f"{training:.0f} GiB on a GPU of {gpu:.0f}; see docs/launch.md for what to set"
    facts["host memory per node, while loading"] = f"{found.host:.0f} GiB"
    facts["disk"] = f"{found.checkpoint:.1f} GiB a checkpoint, {found.kept:.1f} GiB for all that are kept"
    return facts


def _own_sampler(prompts: float) -> str:
    """What is said of sampling with the trainer's own weights.

    Args:
        prompts: GiB of what `estimate` counts for it.
    """
    counted = f"keys and values of prompts take {prompts:.2f} GiB" if prompts else "its caches are not counted"
    return f"the trainer's own weights; {counted}"

"""The report of ``--plan``: the run that a recipe would start, and its estimated memory, without loading weights."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from trl import ModelConfig

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.arguments import RecipeArguments, planned_launch
from alignopsd_trl.launch.job import Job
from alignopsd_trl.launch.machine import Launch, check_launch
from alignopsd_trl.launch.memory import (
    Sampler,
    backbone,
    config_of,
    encoder_bytes,
    estimate,
    gpu_memory,
    loading,
    sampler,
)
from alignopsd_trl.methods import get_method
from alignopsd_trl.results.card import changed_settings
from alignopsd_trl.scoring.prefix_cache import SHARE


def plan(job: Job, changed: Mapping[str, Any], whole: bool = False) -> str:
    """Checks a run, then reports unusual settings, rows and tokens of a round, memory and parts.

    Args:
        changed: settings that differ from the preset.

    Raises:
        ValueError: if the run can't succeed.
    """
    recipe, args, suite = job.recipe, job.args, job.suite
    launch = planned_launch(recipe.plan_for)
    check_launch(launch, args, installed=False)
    trajectories = args.per_device_train_batch_size * args.steps_per_generation * launch.processes
    job.check(trajectories // args.num_generations)
    turns = args.max_turns or suite.factory().max_turns
    missing = "not installed here; the run needs pip install 'alignopsd-trl[vllm]'"
    facts = {
        **job.facts(launch),
        **({"vLLM": missing} if args.use_vllm and find_spec("vllm") is None else {}),
        "trajectories per round": f"{trajectories}, optimiser steps {args.steps_per_round}",
        "turn rows per round, at most": trajectories * turns,
        "tokens per turn, at most": args.max_prompt_length + args.max_completion_length,
        "trained tokens per round, at most": trajectories * turns * args.max_completion_length,
        **memory_facts(recipe, args, job.model, launch, turns * trajectories // launch.processes),
        **job.part_facts(),
    }
    width = max(map(len, facts)) + 2
    lines = [_wrapped(f"{name:<{width}}", str(value)) for name, value in facts.items()]
    settings = ["all settings, and the environment's: --all"]
    if whole:
        names = sorted(one.name for one in fields(AlignOPSDConfig) if not one.name.endswith("_token"))
        settings = [f"  {name}: {getattr(args, name)}" for name in names]
        settings.append(f"  environment: {json.dumps(dict(suite.description), default=str)}")
    return "\n".join([*not_as_usual(args, changed), "", *lines, "", *settings])


def not_as_usual(args: AlignOPSDConfig, changed: Mapping[str, Any]) -> list[str]:
    """Returns the changed settings: those of the command line, then those of the preset."""
    preset = {name: value for name, value in changed_settings(vars(args)).items() if name not in changed}

    def shown(settings: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={getattr(one, 'value', one)}" for name, one in settings.items()) or "nothing"

    return [_wrapped("not as in the preset: ", shown(changed)), _wrapped("not as by default: ", shown(preset))]


def _wrapped(label: str, text: str) -> str:
    return "\n".join(textwrap.wrap(text, 118, initial_indent=label, subsequent_indent="  ", break_on_hyphens=False))


def memory_facts(
    recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, launch: Launch, rows: int
) -> dict[str, str]:
    """Returns the plan's lines about memory: on a GPU, of a colocated sampler, on the host, on disk.

    Args:
        rows: maximum number of turns in a process's round.

    Raises:
        ValueError: if the sampler's share can't hold its weights; if the weights can't be loaded or counted so.
    """
    name, remote, gpu = str(model.model_name_or_path), args.trust_remote_code, gpu_memory(recipe.gpu_gib)
    shape, loaded = backbone(name, remote), loading(config_of(name, remote), model, args, launch)
    method = get_method(args.method)(args)
    encoder = encoder_bytes(recipe.encoder if method.needs_encoder else None)
    found = estimate(
        shape,
        args,
        launch,
        loaded,
        teaches=method.needs_teacher or bool(args.privileged_siblings),
        encoder=encoder,
        gpu_gib=None if args.use_cpu else gpu,
        kept_logits=rows * args.max_completion_length * method.kept_logits,
    )
    parts = ", ".join(f"{name} {value:.1f}" for name, value in found.training.items() if value >= 0.05)
    facts = {"memory per GPU, estimate": f"{found.peak:.1f} GiB for training, at its peak ({parts})"}
    unknown = f"the encoder {recipe.encoder!r}: its size can't be told without loading it" if encoder is None else ""
    if uncounted := "; ".join(filter(None, (unknown, shape.uncounted))):
        facts["not counted"] = uncounted
    engine = sampler(shape, args, gpu, loaded.served_bytes)
    facts["sampler"] = _sampler_fact(args, engine, gpu)
    sampling, training = found.standing, found.peak
    if engine is not None:
        sampling += engine.share
        training += 0.0 if args.vllm_enable_sleep_mode else engine.share
        asleep = "asleep" if args.vllm_enable_sleep_mode else "beside it"
        facts["one GPU at once"] = f"{sampling:.1f} GiB while vLLM samples, {training:.1f} in training, vLLM {asleep}"
    if (most := max(sampling, training)) > 0.95 * gpu:
        when = "while vLLM samples" if most == sampling else "in training"
        facts["DOES NOT FIT"] = f"{most:.1f} GiB {when}, on a GPU of {gpu:.0f}; see docs/launch.md for what to set"
    elif engine is not None and engine.sequences == 0:
        facts["DOES NOT FIT"] = (
            f"vllm_gpu_memory_utilization={args.vllm_gpu_memory_utilization} leaves no room for one full-length "
            "response; raise it"
        )
    facts["host memory per node, while loading"] = f"{found.host:.0f} GiB"
    facts["disk"] = f"{found.checkpoint:.1f} GiB a checkpoint, {found.kept:.1f} GiB for all that are kept"
    return facts


def _sampler_fact(args: AlignOPSDConfig, engine: Sampler | None, gpu: float) -> str:
    """Returns the line about the sampler's place and, of vLLM, its memory."""
    if engine is None and args.use_vllm:
        return "on the server's GPUs"
    if engine is None:
        return "the trainer's own weights" + ("" if args.use_cpu else f"; {SLOW_SAMPLING}")
    if engine.weights > engine.share:
        raise ValueError(
            f"vllm_gpu_memory_utilization={args.vllm_gpu_memory_utilization} of {gpu:.0f} GiB can't hold the "
            f"sampler's weights ({engine.weights:.1f} GiB); raise it, or vllm_tensor_parallel_size"
        )
    return (
        f"{engine.share:.1f} GiB of {gpu:.0f} (weights {engine.weights:.1f}, buffers {engine.buffers:.1f}, cache "
        f"{engine.cache:.1f}: {engine.sequences} full-length responses at once, {engine.most} at most)"
    )


SLOW_SAMPLING = (
    "without vLLM each token waits for small kernels: take --use_vllm --vllm_mode colocate; keys and values: "
    f"{SHARE:.0%} of what is free"
)
"""The advice for a GPU that samples without vLLM."""

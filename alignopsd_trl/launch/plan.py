"""``--plan``: what a recipe would run, and about how much memory it would take, without loading weights."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from trl import ModelConfig

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.arguments import RecipeArguments
from alignopsd_trl.launch.presets import BACKBONES, Backbone
from alignopsd_trl.policy.shipped import resolve_model
from environments.base import Suite
from environments.panel import TaskPanel

GIB = 2**30
ADAM_BYTES = 8  # two float32 moments a parameter


def backbone(name: str) -> Backbone:
    """The shape of a model, from its name or its config file.

    Raises:
        OSError: if it is neither one of the table nor a folder with a config.
    """
    for known in BACKBONES.values():
        if known.hub_id == name:
            return known
    path = Path(resolve_model(name))
    if not path.is_dir():
        known = ", ".join(one.hub_id for one in BACKBONES.values())
        raise OSError(f"no memory estimate for model_name_or_path={name!r}: give a local folder, or one of {known}")
    return _from_config(name, AutoConfig.from_pretrained(path).get_text_config())


def _from_config(name: str, config: Any) -> Backbone:
    head = config.hidden_size // config.num_attention_heads
    kv = 2 * (config.num_key_value_heads or config.num_attention_heads) * head
    layer = config.hidden_size * (2 * config.hidden_size + kv + 3 * config.intermediate_size)
    words = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    parameters = config.num_hidden_layers * layer + words
    return Backbone(name, parameters, config.num_hidden_layers, config.hidden_size, kv, config.vocab_size)


def memory(
    shape: Backbone, args: AlignOPSDConfig, trained_share: float, shards: int, master_bytes: int
) -> dict[str, float]:
    """Rough GiB per device of the training process; a colocated sampler comes on top.

    Weights, gradients and Adam's moments are divided by ``shards``; activations are those of one checkpointed layer
    boundary per layer for ``rows_per_forward`` full rows, plus one full layer and one tile of the vocabulary head.
    """
    trained = shape.parameters * trained_share
    tokens = args.rows_per_forward * (args.max_prompt_length + args.max_completion_length)
    boundaries = tokens * shape.hidden * 2 * (shape.layers if args.gradient_checkpointing else 8 * shape.layers)
    one_layer = tokens * shape.hidden * 2 * 16
    head = args.rows_per_forward * args.max_completion_length * min(shape.vocabulary, 32768) * 4
    cache = args.scoring_tokens * shape.kv_width * 2 * shape.layers
    parts = {
        "weights": shape.parameters * master_bytes / shards,
        "gradients": trained * master_bytes / shards,
        "optimizer": trained * ADAM_BYTES / shards,
        "reference": 0.0 if args.beta == 0.0 or trained_share < 1 else shape.parameters * master_bytes / shards,
        "activations": boundaries + one_layer + head,
        "scoring": cache + args.scoring_tokens * shape.hidden * 2 * 4,
    }
    return {name: value / GIB for name, value in parts.items()}


def print_plan(
    recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig, suite: Suite, panel: TaskPanel
) -> None:
    """Prints resolved config, rows and tokens per update, memory estimate, panel and checksums."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trajectories = args.generation_batch_size
    turns = args.max_turns or suite.factory().max_turns
    updates = args.steps_per_generation // args.gradient_accumulation_steps
    trained = 0.01 if model.use_peft else 1.0
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true" or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    parts = memory(
        backbone(model.model_name_or_path),
        args,
        trained,
        shards=processes if sharded else 1,
        master_bytes=2 if model.dtype in ("bfloat16", "float16") else 4,
    )
    tasks = suite.tasks(recipe.train_split)
    facts = {
        "model": model.model_name_or_path,
        "method": args.method,
        "preset": recipe.preset,
        "processes": processes,
        "trajectories per round": trajectories,
        "optimiser steps per round": updates,
        "rounds": f"{args.max_steps / updates:g}" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs",
        "turn rows per round, at most": trajectories * turns,
        "tokens per turn, at most": args.max_prompt_length + args.max_completion_length,
        "trained tokens per round, at most": trajectories * turns * args.max_completion_length,
        "training tasks": len(tasks),
        "panel": f"{panel.name} of {panel.environment}: {len(panel)} tasks, checksum {panel.checksum}",
        "environment": json.dumps(dict(suite.description), default=str),
    }
    width = max(map(len, facts)) + 2
    print("\n".join(f"{name:<{width}}{value}" for name, value in facts.items()))
    total = sum(parts.values())
    shown = ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value >= 0.05)
    print(f"{'memory per device, estimate':<{width}}{total:.1f} GiB ({shown}); sampler not counted")
    print("config")
    for name in sorted(one.name for one in fields(AlignOPSDConfig)):
        value = getattr(args, name)
        if value is not None:
            print(f"  {name}: {value}")

"""A recipe's arguments, and how they are read: preset, then YAML, then flags."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl import ModelConfig, TrlParser

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.presets import own_preset, preset, round_shape


@dataclass
class RecipeArguments:
    """What a recipe adds to the trainer's and the model's arguments."""

    preset: str = field(
        default="paper", metadata={"help": "'paper', or 'released' for the published launcher's settings."}
    )
    plan: bool = field(
        default=False, metadata={"help": "Print what would run (config, rows, memory, panel) and load no weights."}
    )
    environment: str = field(default="webshop", metadata={"help": "Environment by name, or a module with suite()."})
    environment_options: str | None = field(
        default=None, metadata={"help": "JSON, handed to the environment's suite()."}
    )
    train_split: str = field(default="train", metadata={"help": "Split of the environment's tasks to train on."})
    panel: str = field(default="test", metadata={"help": "Panel that is evaluated before and after training."})
    panel_limit: int | None = field(default=None, metadata={"help": "Only the first tasks of the panel."})
    evaluate_first: bool = field(default=True, metadata={"help": "Evaluate the panel before training as well."})
    skill_bank: str | None = field(
        default=None, metadata={"help": "Shipped skill bank or a JSON file; by default the environment's own."}
    )
    encoder: str = field(
        default="lexical", metadata={"help": "Sentence encoder: 'lexical' (no weights), an id or a path."}
    )
    tasks_per_round: int | None = field(
        default=None, metadata={"help": "Task groups per rollout round over all processes; sets the batch arguments."}
    )
    updates_per_round: int = field(default=1, metadata={"help": "Optimiser steps per rollout round."})
    rounds: int | None = field(default=None, metadata={"help": "Rollout rounds; sets max_steps."})


def parse(
    name: str, argv: Sequence[str] | None = None, own: Mapping[str, Any] | None = None
) -> tuple[RecipeArguments, AlignOPSDConfig, ModelConfig]:
    """Preset, then YAML (``--config``), then flags, each over the one before.

    Args:
        name (`str`): of the recipe, such as ``webshop_7b``, or of a module with a mapping ``PRESET``.
        argv (`list[str]`, *optional*): command line; the process's own by default.
        own (`dict`, *optional*): a preset of the caller's, in place of the one that ``name`` has.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    kind = _early(argv, "preset", str, "paper")
    chosen = preset(name, kind) if own is None else own_preset(own, name, kind)
    defaults = {"output_dir": f"outputs/{name}", **chosen}
    shape = {
        key: _early(argv, key, int, defaults.get(key, fallback))
        for key, fallback in (
            ("tasks_per_round", None),
            ("num_generations", 8),
            ("updates_per_round", 1),
            ("rounds", None),
        )
    }
    if shape["tasks_per_round"] is not None:
        defaults |= round_shape(
            shape["tasks_per_round"],
            shape["num_generations"],
            shape["updates_per_round"],
            int(os.environ.get("WORLD_SIZE", "1")),
        )
    if shape["rounds"] is not None:
        defaults["max_steps"] = shape["rounds"] * shape["updates_per_round"]
    if "--plan" in argv and not _has_accelerator():
        defaults["use_cpu"] = True  # a plan is drawn up where it will not run
    parser = TrlParser((RecipeArguments, AlignOPSDConfig, ModelConfig))
    unknown = parser.set_defaults_with_config(**defaults)
    if unknown:
        raise ValueError(f"preset of {name!r} sets unknown fields: {unknown}")
    return parser.parse_args_and_config(args=argv)


def _early(argv: Sequence[str], name: str, kind: type, default: Any) -> Any:
    """A value that other defaults depend on, read ahead from the YAML file and the flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--config")
    known, _ = parser.parse_known_args(argv)
    if getattr(known, name) is not None:
        return getattr(known, name)
    if known.config:
        import yaml

        content = yaml.safe_load(Path(known.config).read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get(name) is not None:
            return kind(content[name])
    return default


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()

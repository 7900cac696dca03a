"""A recipe's arguments, and how they are read: preset, then YAML, then flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl import ModelConfig, TrlParser

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.machine import Launch, from_file, launched
from alignopsd_trl.launch.presets import optimiser_steps, own_preset, preset, round_shape


@dataclass
class RecipeArguments:
    """What a recipe adds to the trainer's and the model's arguments."""

    preset: str = field(
        default="paper", metadata={"help": "'paper', or 'released' for the published launcher's settings."}
    )
    plan: bool = field(
        default=False, metadata={"help": "Print what would run (config, rows, memory, panel) and load no weights."}
    )
    plan_for: str | None = field(
        default=None,
        metadata={
            "help": "With --plan: the launch to plan for, an accelerate configuration such as "
            "recipes/accelerate/fsdp2.yaml. None: the launch that this process is part of."
        },
    )
    gpu_gib: float | None = field(
        default=None,
        metadata={"help": "With --plan: memory of one GPU in GiB. None: of the GPU that is here, else 80."},
    )
    environment: str = field(default="webshop", metadata={"help": "Environment by name, or a module with suite()."})
    environment_options: str | None = field(
        default=None, metadata={"help": "JSON, handed to the environment's suite()."}
    )
    trajectories_hub_repo: str | None = field(
        default=None,
        metadata={"help": "Data set on the Hub that the trajectories are pushed to at the end. None: they stay here."},
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
    updates_per_round: int | None = field(
        default=None, metadata={"help": "Optimiser steps per rollout round. None: by rows_per_step; 1 without it."}
    )
    rows_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Turn rows of one optimiser step, about (64 or 256 in the published launchers): the round is cut "
            "into as many equal parts as come nearest. updates_per_round=1 makes the round one step."
        },
    )
    rounds: int | None = field(default=None, metadata={"help": "Rollout rounds; sets max_steps."})
    save_rounds: int | None = field(
        default=None, metadata={"help": "Rounds between two checkpoints, which never fall inside one; sets save_steps."}
    )
    threads: int | None = field(
        default=None,
        metadata={"help": "CPU threads of a process. None: OMP_NUM_THREADS, else the process's share of the cores."},
    )


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
    method, options = _early(argv, "method", str, "align_opsd"), _early(argv, "method_options", _json_object, {})
    chosen = preset(name, kind, method, options) if own is None else own_preset(own, name, kind)
    defaults = {"output_dir": f"outputs/{name}", **chosen}
    defaults |= _round_defaults(argv, defaults)
    if "--plan" in argv and not _has_accelerator():
        defaults["use_cpu"] = True  # a plan is drawn up where it will not run
    if "--plan" not in argv and "--plan_for" in argv:
        raise ValueError("plan_for is for --plan; to run with that configuration: accelerate launch --config_file FILE")
    parser = TrlParser((RecipeArguments, AlignOPSDConfig, ModelConfig))
    unknown = parser.set_defaults_with_config(**defaults)
    if unknown:
        raise ValueError(f"preset of {name!r} sets unknown fields: {unknown}")
    return parser.parse_args_and_config(args=argv)


def _round_defaults(argv: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the shape of a round: TRL's batch arguments, steps of the run, steps between checkpoints."""

    def early(name: str, fallback: int | None = None) -> int | None:
        return _early(argv, name, int, defaults.get(name, fallback))

    processes = planned_launch(_early(argv, "plan_for", str, None)).processes
    tasks, siblings, updates = early("tasks_per_round"), early("num_generations", 8), early("updates_per_round")
    shape: dict[str, Any] = {}
    if tasks is not None:
        if updates is None:
            updates = optimiser_steps(early("rows_per_step"), tasks, siblings, early("max_turns"), processes)
        shape = round_shape(tasks, siblings, updates, processes)
    for steps, rounds in (("max_steps", early("rounds")), ("save_steps", early("save_rounds"))):
        if rounds is not None:
            shape[steps] = rounds * (updates or 1)
    return shape


def planned_launch(plan_for: str | None) -> Launch:
    """The launch that a file describes; without one, that of this process."""
    return from_file(plan_for) if plan_for else launched()


def _json_object(value: Any) -> dict[str, Any]:
    return json.loads(value) if isinstance(value, str) else dict(value)


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

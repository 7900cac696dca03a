"""A recipe's arguments, and how they are read: preset, then YAML, then flags."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from typing import Any, NoReturn, get_args, get_type_hints

from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig, TrlParser

from alignopsd_trl.config import AlignOPSDConfig, steps_per_round
from alignopsd_trl.launch.checks import json_mapping, near
from alignopsd_trl.launch.early import early_value, read_yaml
from alignopsd_trl.launch.machine import Launch, from_file, launched
from alignopsd_trl.launch.presets import optimiser_steps, own_preset, preset, round_shape
from alignopsd_trl.methods import method_names
from alignopsd_trl.options import as_type


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
            "recipes/accelerate/fsdp2.yaml, or the name of a shipped one (fsdp2). None: the launch that this process "
            "is part of."
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
    licence: str | None = field(
        default=None, metadata={"help": "Licence id of the weights, for the card. None: the base model's."}
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
        default=None,
        metadata={"help": "Optimiser steps per pass over a rollout round. None: by rows_per_step; 1 without it."},
    )
    rows_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Turn rows of one optimiser step, about (64 or 256 in the published launchers): the round is cut "
            "into as many equal parts as come nearest. updates_per_round=1 makes the round one step."
        },
    )
    rounds: int | None = field(
        default=None,
        metadata={"help": "Rollout rounds, however often each is passed over (num_iterations); sets max_steps."},
    )
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
    kind = early_value(argv, "preset", str, "paper")
    method = early_value(argv, "method", str, "align_opsd")
    options = early_value(argv, "method_options", lambda given: given, {})
    options = json_mapping("method_options", options, '{"walks": 6}')
    chosen = preset(name, kind, method, options) if own is None else own_preset(own, name, kind)
    defaults = {"output_dir": f"outputs/{name}", **chosen}
    defaults |= _round_defaults(argv, defaults)
    if "--plan" in argv and not _has_accelerator():
        defaults["use_cpu"] = True  # a plan is drawn up where it will not run
    if "--plan" not in argv and "--plan_for" in argv:
        raise ValueError("plan_for is for --plan; to run with that configuration: accelerate launch --config_file FILE")
    parser = Parser((RecipeArguments, AlignOPSDConfig, ModelConfig))
    unknown = parser.set_defaults_with_config(**defaults)
    if unknown:
        raise ValueError(f"preset of {name!r} sets unknown fields: {unknown}")
    return parser.read(argv)


class Parser(TrlParser):
    """TRL's parser, whose errors are a line that names flag, value and file instead of its usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.replace("argument --", "--", 1))

    def read(self, argv: Sequence[str]) -> tuple[RecipeArguments, AlignOPSDConfig, ModelConfig]:
        flags = sorted(option for action in self._actions for option in action.option_strings)
        config = early_value(argv, "config", str, None)
        if config:
            self._check_yaml(read_yaml(config), config, flags)
        for word in argv:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag != "--config" and not any(one.startswith(flag) for one in flags):
                raise ValueError(f"{flag} is unknown; {near(flag, flags)}--help all shows every argument")
        *found, rest = self.parse_args_and_config(args=list(argv), return_remaining_strings=True)
        if rest:
            raise ValueError(f"what is {' '.join(rest)!r} meant for? Values follow a flag, such as --method grpo")
        return tuple(found)

    def _check_yaml(self, content: Mapping[str, Any], file: str, flags: Sequence[str]) -> None:
        """A value of a wrong type would otherwise fail somewhere far away, without its name."""
        actions = {action.dest for action in self._actions}
        hints = {name: hint for kind in self.dataclass_types for name, hint in get_type_hints(kind).items()}
        for name, value in content.items():
            if name == "env":
                continue
            if name not in actions:
                known = [flag.removeprefix("--") for flag in flags]
                raise ValueError(f"--config {file}: {name} is unknown; {near(name, known)}correct or remove it")
            hint = hints.get(name)
            if set(get_args(hint) or (hint,)) <= {int, float, type(None)} and value not in (None, "None"):
                as_type(value, hint, f"--config {file}: {name}={value!r}")


def differences_from_preset(
    name: str, own: Mapping[str, Any] | None, recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig
) -> dict[str, Any]:
    """The settings of YAML and flags that are not as the recipe's preset has them."""
    same = ["--preset", recipe.preset, "--output_dir", str(args.output_dir), "--use_cpu", str(args.use_cpu)]
    found: dict[str, Any] = {}
    for given, usual in zip((recipe, args, model), parse(name, same, own), strict=True):
        for one in fields(given):
            value = getattr(given, one.name)
            hidden = one.name in _OF_THE_LAUNCH or one.name.endswith("_token")
            if value != getattr(usual, one.name) and not hidden:
                found[one.name] = value
    for steps, rounds in (("max_steps", "rounds"), ("save_steps", "save_rounds")):
        counted = getattr(recipe, rounds)
        if counted is not None and found.get(steps) == math.ceil(counted * args.steps_per_round):
            del found[steps]
    return found


_OF_THE_LAUNCH = (
    *(
        "plan",
        "plan_for",
        "gpu_gib",
        "output_dir",
        "resume_from_checkpoint",
        "overwrite_output_dir",
        "run_name",
        "use_cpu",
    ),
    *("per_device_train_batch_size", "generation_batch_size", "steps_per_generation"),  # follow from the round's shape
)


def everything() -> str:
    """Every argument, in groups, with its type, default and help."""
    own = {one.name for one in fields(AlignOPSDConfig)} - {one.name for one in fields(GRPOConfig)}
    usual = {one.name for one in fields(TrainingArguments)}
    groups = (
        ("Recipe", [*fields(RecipeArguments)]),
        (f"Method and trainer; --method is one of {', '.join(method_names())}", _of(lambda name: name in own)),
        ("TRL's GRPOConfig", _of(lambda name: name not in own and name not in usual)),
        ("transformers' TrainingArguments", _of(lambda name: name in usual)),
        ("Model", [*fields(ModelConfig)]),
    )
    lines: list[str] = []
    for title, members in groups:
        lines += ["", title]
        for one in members:
            default = one.default if one.default is not MISSING else "..."
            kind = str(getattr(one.type, "__name__", one.type))
            text = f"{' '.join(str(one.metadata.get('help') or '').split())} [{kind}, default {default}]"
            lines += textwrap.wrap(text, 112, initial_indent=f"  --{one.name:<28} ", subsequent_indent=" " * 33)
    return "\n".join(lines[1:])


def _of(wanted: Callable[[str], bool]) -> list[Any]:
    return [one for one in fields(AlignOPSDConfig) if wanted(one.name)]


def _round_defaults(argv: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the shape of a round: TRL's batch arguments, steps of the run, steps between checkpoints."""

    def early(name: str, fallback: int | None = None) -> int | None:
        return early_value(argv, name, int, defaults.get(name, fallback))

    processes = planned_launch(early_value(argv, "plan_for", str, None)).processes
    tasks, siblings, parts = early("tasks_per_round"), early("num_generations", 8), early("updates_per_round")
    shape: dict[str, Any] = {}
    if tasks is not None:
        if parts is None:
            parts = optimiser_steps(early("rows_per_step"), tasks, siblings, early("max_turns"), processes)
        shape = round_shape(tasks, siblings, parts, processes)
    accumulated = early("gradient_accumulation_steps", shape.get("gradient_accumulation_steps", 1))
    parts = early("steps_per_generation", shape.get("steps_per_generation", accumulated))
    if whole := early("generation_batch_size"):
        rows = early("per_device_train_batch_size", shape.get("per_device_train_batch_size", 8))
        parts = whole // (rows * processes)
    steps = steps_per_round(parts, early("num_iterations", 1), accumulated)
    if (rounds := early("rounds")) is not None:
        shape["max_steps"] = _whole_steps(rounds, steps)
    if (rounds := early("save_rounds")) is not None:
        shape["save_steps"] = math.ceil(rounds * steps)
    return shape


def _whole_steps(rounds: int, steps: Fraction) -> int:
    """Optimiser steps of so many rounds.

    Raises:
        ValueError: if one of them would need a further round.
    """
    if (rounds * steps).denominator > 1:
        raise ValueError(
            f"rounds={rounds} would end inside an optimiser step, which takes {1 / steps} rounds with these "
            f"gradient_accumulation_steps; use {math.ceil(rounds * steps) / steps}"
        )
    return int(rounds * steps)


def planned_launch(plan_for: str | None) -> Launch:
    """The launch that a file describes; without one, that of this process."""
    return from_file(plan_for) if plan_for else launched()


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()

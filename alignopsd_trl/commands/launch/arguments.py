"""The arguments of a recipe, and their parser: preset, then YAML, then flags."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import torch
from pydantic import Field
from trl import ModelConfig, TrlParser

from alignopsd_trl.commands.launch.machine import Launch, from_file, launched
from alignopsd_trl.commands.launch.presets import optimiser_steps, own_preset, preset, round_shape
from alignopsd_trl.commands.launch.values import options_over, read_yaml
from alignopsd_trl.common.options import (
    Positive,
    PositiveCount,
    as_mapping,
    as_type,
    hints_of,
    near,
    option,
    settle,
    settled,
)
from alignopsd_trl.config import INHERITED_RULES, AlignOPSDConfig, steps_per_round
from alignopsd_trl.methods import method_names
from alignopsd_trl.runs.folder import wanted
from alignopsd_trl.runs.provenance import MEASURED
from alignopsd_trl.runs.state import read_run


@dataclass
class RecipeArguments:
    """The recipe's own arguments, beside the trainer's and the model's."""

    _argument_group_name = "recipe"

    preset: Literal["paper", "released"] = option("paper", "'paper', or 'released': the launchers' settings.")
    plan: bool = option(False, "Print what would run (config, rows, memory, panel) and load no weights.")
    plan_for: str | None = option(
        None, "With --plan: accelerate's file of a launch, or the name of a shipped one (fsdp2). None: this process's."
    )
    gpu_gib: Positive | None = option(None, "With --plan: GiB of one GPU. None: of the GPU that is here, else 80.")
    environment: str = option("webshop", "Environment by name, or a module with suite().")
    environment_options: dict[str, Any] | str | None = option(
        None, "JSON, handed to the environment's suite(), over the preset's."
    )
    trajectories_hub_repo: str | None = option(
        None, "Data set on the Hub that the trajectories are pushed to at the end. None: they stay here."
    )
    licence: str | None = option(None, "Licence id of the weights, for the card. None: the base model's.")
    train_split: str = option("train", "Split of the environment's tasks to train on.")
    panel: str = option("test", "Panel that is evaluated before and after training; NAME/COUNT draws from it.")
    panel_limit: PositiveCount | None = option(None, "Only the first tasks of the panel.")
    held_out: PositiveCount | None = option(
        None,
        "Training tasks that are kept out and played after each round; the run ends with the weights that won "
        "most; with the first policy's unless some won more by over one standard error.",
    )
    evaluate_first: bool = option(True, "Evaluate the panel before training as well.")
    skill_bank: str | None = option(None, "Shipped skill bank or a JSON file; by default the environment's own.")
    encoder: str = option("lexical", "Sentence encoder: 'lexical' (no weights), an id or a path.")
    tasks_per_round: PositiveCount | None = option(None, "Task groups of a round, over all processes; sets the batch.")
    updates_per_round: PositiveCount | None = option(
        None, "Optimiser steps per pass over a rollout round. None: by rows_per_step; 1 without it."
    )
    rows_per_step: PositiveCount | None = option(
        None,
        "Turn rows of one optimiser step, about (64 or 256 in the published launchers): the round is cut into as "
        "many equal parts as come nearest. updates_per_round=1 makes the round one step.",
    )
    rounds: PositiveCount | None = option(None, "Rollout rounds, whatever num_iterations is; sets max_steps.")
    save_rounds: PositiveCount | None = option(None, "Rounds from one checkpoint to the next; sets save_steps.")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = option(
        None, "CPU threads of a process. None: OMP_NUM_THREADS, else the process's share of the cores."
    )

    def __post_init__(self) -> None:
        settle(self)
        if self.environment_options is not None:
            try:
                self.environment_options = json.dumps(self.environment_options)
            except (TypeError, ValueError) as error:
                told = f"environment_options={self.environment_options!r:.120} must be what JSON holds ({error})"
                raise ValueError(f"{told}, since a run notes it; let suite() make other objects") from error


class Parsed(NamedTuple):
    """A recipe's arguments, the names of those that flags and file give, and those that differ from the preset."""

    recipe: RecipeArguments
    args: AlignOPSDConfig
    model: ModelConfig
    given: set[str]
    changed: dict[str, Any]


def parse(
    name: str, argv: Sequence[str] | None = None, own: Mapping[str, Any] | None = None
) -> tuple[RecipeArguments, AlignOPSDConfig, ModelConfig]:
    """Returns the first three of `parsed`."""
    return parsed(name, argv, own)[:3]


def parsed(name: str, argv: Sequence[str] | None = None, own: Mapping[str, Any] | None = None) -> Parsed:
    """Parses the preset (the caller's ``own``, else that of the recipe or module ``name``), then YAML (``--config``),
    then flags, by default the process's own; each overrides the one before."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = Parser()
    parser.refuse_unknown(argv)
    usual = vars(parser.look([]))
    parser.take_file(argv)
    asked = parser.look(argv)
    played, options = asked.environment_options, (asked.preset, asked.method, asked.method_options)
    chosen = preset(name, *options) if own is None else own_preset(own, name, asked.preset)
    chosen = {"output_dir": f"outputs/{name}", **chosen}
    run = read_run(Path(asked.output_dir or chosen["output_dir"])) if wanted(asked.resume_from_checkpoint) else None
    there = run["configuration"] if run else {}
    chosen |= {measured: there[measured] for measured in MEASURED if measured in there and measured in chosen}
    parser.below_file(chosen, f"preset of {name!r}")
    asked = parser.look(argv)
    here = torch.cuda.is_available() or torch.backends.mps.is_available()
    elsewhere = asked.plan and not asked.use_cpu and not here
    if elsewhere:  # the plan is for another machine; transformers would raise here
        parser.below_file({"use_cpu": True, "bf16": not asked.fp16 if asked.bf16 is None else asked.bf16})
    if asked.plan_for and not asked.plan:
        raise ValueError("plan_for is for --plan; to run with that configuration: accelerate launch --config_file FILE")
    if asked.gpu_gib and not asked.plan:
        raise ValueError(f"gpu_gib={asked.gpu_gib:g} is for --plan; leave it out")
    parser.below_file(_batch_defaults(asked))
    parser.below_file(_length_defaults(parser.look(argv)))
    given = parser.given(argv)
    for ours, trls in TWICE.items():
        if {ours, trls} <= given:
            raise ValueError(f"--{ours} and --{trls} are both given, and say the same in two ways; leave one out")
    made: Any = parser.parse_args_into_dataclasses(list(argv), return_remaining_strings=True)
    recipe, args, model = made[:3]
    same = recipe.environment == chosen["environment"]
    recipe.environment_options = options_over(chosen.get("environment_options") if same else None, played)
    settle(model, MODEL_RULES)
    shaped = set() if "use_peft" in given else {*chosen} & {*ADAPTER}  # a preset that forgets use_peft misleads too
    _refuse_misleading(given | shaped, recipe, args, model)
    args.use_cpu = args.use_cpu and not elsewhere
    usual, told = usual | settled(chosen, HINTS), vars(recipe) | vars(args) | vars(model)
    other = [one for one in HINTS if one in given - _NOT_SHOWN and getattr(asked, one) != usual[one]]
    return Parsed(recipe, args, model, given, {one: told[one] for one in other if not one.endswith("_token")})


_NOT_SHOWN = {
    *("preset", "plan", "plan_for", "gpu_gib", "output_dir", "resume_from_checkpoint", "overwrite_output_dir"),
    *("run_name", "use_cpu", "per_device_train_batch_size", "generation_batch_size", "steps_per_generation"),
}
"""Settings that do not describe the run itself, or follow from the round's shape."""

KINDS: tuple[Any, ...] = (RecipeArguments, AlignOPSDConfig, ModelConfig)
"""The classes whose fields are a recipe's arguments."""

MODEL_RULES: dict[str, Any] = {
    **dict.fromkeys(("lora_r", "lora_alpha"), PositiveCount),
    "lora_dropout": Annotated[float, Field(ge=0, lt=1)],
    "lora_target_modules": str | list[str] | None,  # TRL makes a list of one a text
    "lora_task_type": Literal["CAUSAL_LM"],
}
"""Types with the limits of TRL's model arguments."""

HINTS: dict[str, Any] = {
    **hints_of(RecipeArguments),
    **hints_of(AlignOPSDConfig, INHERITED_RULES),
    **hints_of(ModelConfig, MODEL_RULES),
}

TWICE = {"rounds": "max_steps", "save_rounds": "save_steps", "updates_per_round": "steps_per_generation"}
"""Arguments of a recipe, and TRL's that say the same."""

_KINDS = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false"}


class Parser(TrlParser):
    """TRL's parser; its errors are one line with argument, value and file, without the usage."""

    def __init__(self) -> None:
        super().__init__(KINDS, allow_abbrev=False)
        self.add_argument("--config", default=None, help="YAML file of arguments, over the preset and under flags.")
        self._file: dict[str, Any] = {}

    def error(self, message: str) -> NoReturn:
        wrong = re.fullmatch(r"argument --(\w+)\S*: invalid (\w+) value: (.*)", message)
        choice = re.fullmatch(r"argument --(\w+): invalid choice: (.*) \(choose from (.*)\)", message)
        if wrong and wrong[2] in _KINDS:
            message = f"{wrong[1]}={wrong[3]} must be {_KINDS[wrong[2]]}"
        elif choice:
            message = f"{choice[1]}={choice[2]}: choose one of {choice[3]}"
        raise ValueError(message.replace("argument --", "--", 1))

    def look(self, argv: Sequence[str]) -> argparse.Namespace:
        """Returns the current values as their classes will take them, before any is made from them."""
        return argparse.Namespace(**settled(vars(self.parse_known_args(list(argv))[0]), HINTS))

    def refuse_unknown(self, argv: Sequence[str]) -> None:
        """Raises `ValueError` for a flag that no recipe has, with the nearest name, and for a loose word."""
        if not (rest := self.parse_known_args(list(argv))[1]):
            return
        flag = rest[0].partition("=")[0]
        if flag.startswith("--"):
            known = near(flag, [f"--{name}" for name in HINTS])
            raise ValueError(f"{flag} is unknown; {known}--help all shows every argument")
        raise ValueError(f"what is {' '.join(rest)!r} meant for? Values follow a flag, such as --method grpo")

    def take_file(self, argv: Sequence[str]) -> None:
        """Reads the file of ``--config``; its values override all defaults."""
        if (path := self.look(argv).config) is None:
            return
        content = read_yaml(path)
        variables = as_type(
            content.pop("env", None) or {}, dict[str, str | int | float | bool], f"--config {path}: env"
        )
        os.environ |= {variable: str(value) for variable, value in variables.items()}
        if unknown := [name for name in content if name not in HINTS]:
            known = near(str(unknown[0]), [*HINTS])
            raise ValueError(f"--config {path}: {unknown[0]} is unknown; {known}correct or remove it")
        named = dict.fromkeys(("output_dir", "model_name_or_path"), str)  # null would be another one than the preset's
        self._file = settled(content, HINTS | named, f"--config {path}: ")
        self.set_defaults_with_config(**self._file)

    def below_file(self, defaults: Mapping[str, Any], source: str = "recipe") -> None:
        """Sets defaults for the arguments that the file does not set."""
        given = {name: value for name, value in defaults.items() if name not in self._file}
        if unknown := sorted(map(str, set(given) - set(HINTS))):
            raise ValueError(f"{source} sets unknown fields: {unknown}")
        self.set_defaults_with_config(**given)

    def given(self, argv: Sequence[str]) -> set[str]:
        """Returns the names of the settings that flags and the file give."""
        flags = [word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")]
        return {flag if flag in HINTS else flag.removeprefix("no_") for flag in flags} & set(HINTS) | set(self._file)


ADAPTER = {f"lora_{name}": name for name in ("r", "target_modules", "target_parameters", "modules_to_save")}
ADAPTER |= {name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")}
"""Settings of an adapter -> their names in its own file."""


def _refuse_misleading(given: set[str], recipe: RecipeArguments, args: AlignOPSDConfig, model: ModelConfig) -> None:
    """Raises `ValueError` for settings without which another run would be meant: they can't just be left unread."""
    shaping = [name for name in ADAPTER if name in given and getattr(model, name)]
    if shaping and not model.use_peft:
        raise ValueError(
            f"{shaping[0]}={getattr(model, shaping[0])!r} shapes an adapter, and without use_peft all weights are "
            f"trained; set --use_peft True, or leave {shaping[0]} out"
        )
    for name, own in (("dtype", "dtype"), ("torch_dtype", "dtype"), ("revision", "model_revision")):
        if name in as_mapping(args.model_init_kwargs):
            raise ValueError(f"model_init_kwargs[{name!r}]: set {own} instead, which a recipe loads with")
    if recipe.held_out and args.load_best_model_at_end:
        raise ValueError(
            f"held_out={recipe.held_out} and load_best_model_at_end=True both choose the weights that the run ends "
            "with; leave one out"
        )
    local = args.per_device_train_batch_size * args.steps_per_generation
    groups = local * planned_launch(recipe.plan_for).processes / args.num_generations
    if "tasks_per_round" in given and groups != recipe.tasks_per_round:
        raise ValueError(
            f"tasks_per_round={recipe.tasks_per_round} is given beside batch arguments that make rounds of {groups:g} "
            "tasks; leave one out"
        )


def everything() -> str:
    parser = Parser()
    parser.usage = "alignopsd train RECIPE [--FLAG VALUE ...]"
    parser.description = f"--method is one of {', '.join(method_names())}"
    return parser.format_help()


def _batch_defaults(asked: argparse.Namespace) -> dict[str, int]:
    """Returns TRL's batch arguments for rounds of ``tasks_per_round`` tasks."""
    tasks, siblings, parts = asked.tasks_per_round, asked.num_generations, asked.updates_per_round
    if tasks is None:
        return {}
    processes = planned_launch(asked.plan_for).processes
    if parts is None:
        parts = optimiser_steps(asked.rows_per_step, tasks, siblings, asked.max_turns, processes)
    return round_shape(tasks, siblings, parts, processes)


def _length_defaults(asked: argparse.Namespace) -> dict[str, int]:
    """Returns the optimiser steps of the run and between checkpoints, from the rounds of both."""
    accumulated = asked.gradient_accumulation_steps
    parts = asked.steps_per_generation or accumulated
    if asked.generation_batch_size:
        rows = asked.per_device_train_batch_size * planned_launch(asked.plan_for).processes
        parts = asked.generation_batch_size // rows
    steps = steps_per_round(parts, asked.num_iterations, accumulated)
    found = {}
    if asked.rounds is not None:
        if (asked.rounds * steps).denominator > 1:
            raise ValueError(
                f"rounds={asked.rounds} would end inside an optimiser step, which takes {1 / steps} rounds with these "
                f"gradient_accumulation_steps; use {math.ceil(asked.rounds * steps) / steps}"
            )
        found["max_steps"] = int(asked.rounds * steps)
    if asked.save_rounds is not None:
        found["save_steps"] = math.ceil(asked.save_rounds * steps)
    return found


def planned_launch(plan_for: str | None) -> Launch:
    """Returns the launch that a file describes; without a file, that of this process."""
    return from_file(plan_for) if plan_for else launched()

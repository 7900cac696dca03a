"""The entry that all recipes share: preset, YAML and flags in; evaluation, training, evaluation, results out.

accelerate launch recipes/webshop_7b.py --preset released --method grpo --max_steps 20 --use_peft
accelerate launch recipes/webshop_7b.py --config my.yaml --plan
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.plan import print_plan
from alignopsd_trl.launch.presets import preset, round_shape
from alignopsd_trl.methods import get_method
from alignopsd_trl.policy.shipped import resolve_model
from environments.base import Suite, load
from environments.panel import TaskPanel

PACKAGES = ("alignopsd-trl", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "numpy")


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


def parse(name: str, argv: Sequence[str] | None = None) -> tuple[RecipeArguments, AlignOPSDConfig, ModelConfig]:
    """Preset, then YAML (``--config``), then flags, each over the one before.

    Args:
        name: of the recipe, such as ``webshop_7b``.
        argv: command line; the process's own by default.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    defaults = {**preset(name, _early(argv, "preset", str, "paper")), "output_dir": f"outputs/{name}"}
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


def main(name: str, argv: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Runs a recipe; returns the content of its ``results.json`` (``None`` for a plan)."""
    recipe, args, model = parse(name, argv)
    options = json.loads(recipe.environment_options) if recipe.environment_options else {}
    suite = load(recipe.environment, **options)
    panel = suite.panel(recipe.panel)
    panel = panel.head(recipe.panel_limit) if recipe.panel_limit else panel
    if recipe.plan:
        if int(os.environ.get("RANK", "0")) == 0:
            print_plan(recipe, args, model, suite, panel)
        return None
    return run(recipe, args, model, suite, panel)


def run(
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    model: ModelConfig,
    suite: Suite,
    panel: TaskPanel,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Evaluates, trains, evaluates again; leaves results, checkpoint, card and trajectories in the output folder."""
    from alignopsd_trl.trainer import AlignOPSDTrainer

    method = get_method(args.method)
    skilled = method(args).needs_teacher or method.skills_in_rollout or method.skills_in_evaluation
    args.model_init_kwargs = {**(args.model_init_kwargs or {}), **_model_options(model)}
    evaluations = Evaluations(panel, Path(args.output_dir), method.skills_in_evaluation, recipe.evaluate_first)
    trainer = AlignOPSDTrainer(
        resolve_model(model.model_name_or_path),
        args,
        environment_factory=suite.factory,
        train_dataset=suite.tasks(recipe.train_split),
        skill_bank=(recipe.skill_bank or suite.skill_bank or suite.name) if skilled else None,
        encoder=recipe.encoder if skilled else None,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
        callbacks=[evaluations, *callbacks],
    )
    evaluations.trainer = trainer
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    seconds = time.perf_counter() - started - evaluations.seconds
    evaluations.play("after")
    trainer.save_model(args.output_dir)
    trainer.create_model_card(model_name=Path(args.output_dir).name)
    if args.push_to_hub:
        trainer.push_to_hub()
    results = {
        "recipe": vars(recipe),
        "environment": dict(suite.description),
        "before": evaluations.results.get("before"),
        "after": evaluations.results["after"],
        "config": args.to_dict(),
        "seed": args.seed,
        "versions": {package: _version(package) for package in PACKAGES},
        "seconds": {
            "training": seconds,
            "evaluation": evaluations.seconds,
            "phases": dict(trainer.phases.total),
            "per_update": seconds / max(trainer.state.global_step, 1),
        },
        "history": trainer.state.log_history,
    }
    if trainer.is_world_process_zero():
        path = Path(args.output_dir) / "results.json"
        path.write_text(json.dumps(results, indent=2, default=str), encoding="utf-8")
        print(f"results, checkpoint, model card and trajectories are in {args.output_dir}")
    return results


class Evaluations(TrainerCallback):
    """Plays the panel once the model is prepared for training, and again at the end.

    A resumed run keeps the first evaluation of the run that it resumes.
    """

    def __init__(self, panel: TaskPanel, folder: Path, skills: bool, first: bool):
        self.panel, self.folder, self.skills, self.first = panel, folder, skills, first
        self.trainer: Any = None
        self.results: dict[str, Any] = {}
        self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = self.folder / "evaluation_before.json"
        if not self.first:
            return
        if state.global_step == 0:
            self.play("before")
        elif kept.is_file():
            self.results["before"] = json.loads(kept.read_text(encoding="utf-8"))

    def play(self, when: str) -> None:
        started = time.perf_counter()
        result = self.trainer.evaluate_panel(self.panel, skills=self.skills)
        self.seconds += time.perf_counter() - started
        self.results[when] = result.to_dict(outcomes=True)
        if self.trainer.is_world_process_zero():
            print(f"\n{when} training\n{result.table()}\n", flush=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"evaluation_{when}.json"
            path.write_text(json.dumps(self.results[when], indent=2, default=str), encoding="utf-8")


def _model_options(model: ModelConfig) -> dict[str, Any]:
    chosen = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype if model.dtype != "auto" else None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

"""The entry that all recipes share: preset, YAML and flags in; evaluation, training, evaluation, results out.

accelerate launch recipes/webshop_7b.py --preset released --method grpo --max_steps 20 --use_peft
accelerate launch recipes/webshop_7b.py --config my.yaml --plan
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.arguments import RecipeArguments, parse
from alignopsd_trl.launch.plan import print_plan
from alignopsd_trl.methods import get_method
from alignopsd_trl.policy.shipped import resolve_model
from environments.base import Suite, load
from environments.panel import TaskPanel

PACKAGES = ("alignopsd-trl", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "numpy")


def main(
    name: str, argv: Sequence[str] | None = None, preset: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Runs a recipe; returns the content of its ``results.json`` (``None`` for a plan).

    Args:
        name (`str`): a shipped recipe's, one for a preset of your own, or that of a module with a mapping ``PRESET``.
        argv (`list[str]`, *optional*): command line; the process's own by default.
        preset (`dict`, *optional*): defaults of a recipe of your own, by argument; see ``docs/your_own_task.md``.
    """
    recipe, args, model = parse(name, argv, preset)
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

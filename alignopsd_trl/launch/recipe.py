"""The entry that all recipes share: preset, YAML and flags in; evaluation, training, evaluation, results out.

accelerate launch recipes/webshop_7b.py --preset released --method grpo --max_steps 20 --use_peft
accelerate launch recipes/webshop_7b.py --config my.yaml --plan
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import ModelConfig, get_peft_config, get_quantization_config

from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.arguments import RecipeArguments, parse
from alignopsd_trl.launch.cores import use_machine
from alignopsd_trl.launch.machine import check_launch, launched
from alignopsd_trl.launch.plan import print_plan
from alignopsd_trl.launch.results import Evaluations, run_results
from alignopsd_trl.methods import get_method
from alignopsd_trl.policy.shipped import resolve_model
from alignopsd_trl.runs.files import write_json, write_text
from alignopsd_trl.runs.folder import RESULTS_FILE, RunFolder, claim_together, claimed, configuration_of
from alignopsd_trl.runs.provenance import weights_checksum
from alignopsd_trl.sharing.card import model_card
from alignopsd_trl.sharing.hub import push_run, push_trajectories
from environments.base import Suite, load
from environments.panel import TaskPanel


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
    if args.device.type == "cpu":
        line = use_machine(recipe.threads)
        if args.process_index == 0:
            print(line, flush=True)
    return run(recipe, args, model, suite, panel)


def run(
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    model: ModelConfig,
    suite: Suite,
    panel: TaskPanel,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Evaluates, trains, evaluates again; leaves results, checkpoint, card and trajectories in the output folder.

    Raises:
        RunFolderError: if the folder is in use, or holds a run that this one does not continue.
        PushFailed: if the finished run could not be pushed; everything is in its folder.
    """
    tasks = suite.tasks(recipe.train_split)
    facts = {
        **vars(recipe),
        **vars(model),
        "environment_facts": dict(suite.description),
        "panel_checksum": panel.checksum,
        "weights": weights_checksum(model.model_name_or_path),
    }
    folder = claim_together(
        args.output_dir, configuration_of(args, tasks, **facts), args.resume_from_checkpoint, args.overwrite_output_dir
    )
    with claimed(folder):
        return _run(folder, recipe, args, model, suite, panel, tasks, callbacks)


def _run(
    folder: RunFolder,
    recipe: RecipeArguments,
    args: AlignOPSDConfig,
    model: ModelConfig,
    suite: Suite,
    panel: TaskPanel,
    tasks: Any,
    callbacks: Sequence[TrainerCallback],
) -> dict[str, Any]:
    from alignopsd_trl.trainer import AlignOPSDTrainer

    check_launch(launched(), args)
    method = get_method(args.method)
    skilled = method(args).needs_teacher or method.skills_in_rollout or method.skills_in_evaluation
    config = args.to_dict()  # as it was asked for: the trainer adds to it
    push, args.push_to_hub = args.push_to_hub, False  # once, after the results, in place of transformers' two commits
    args.model_init_kwargs = {**(args.model_init_kwargs or {}), **_model_options(model)}
    evaluations = Evaluations(panel, folder, method.skills_in_evaluation, recipe.evaluate_first)
    trainer = AlignOPSDTrainer(
        resolve_model(model.model_name_or_path),
        args,
        environment_factory=suite.factory,
        train_dataset=tasks,
        skill_bank=(recipe.skill_bank or suite.skill_bank or suite.name) if skilled else None,
        encoder=recipe.encoder if skilled else None,
        peft_config=get_peft_config(model),
        quantization_config=get_quantization_config(model),
        callbacks=[evaluations, *callbacks],
    )
    trainer.run_folder = folder
    evaluations.trainer = trainer
    trainer.train()
    evaluations.play("after")
    trainer.save_model(args.output_dir)
    results = run_results(folder, trainer, evaluations, config, recipe=vars(recipe), suite=suite, model=model)
    if folder.writes:
        write_json(folder.path / RESULTS_FILE, results)
        repository = args.hub_model_id or Path(args.output_dir).name
        write_text(folder.path / "README.md", model_card(results, repository))
        print(f"results, checkpoint, model card and trajectories are in {args.output_dir}")
        if push:
            print(push_run(folder.path, repository, args.hub_token, args.hub_private_repo))
        if recipe.trajectories_hub_repo:
            print(push_trajectories(folder.path, recipe.trajectories_hub_repo, args.hub_token, args.hub_private_repo))
    return results


def _model_options(model: ModelConfig) -> dict[str, Any]:
    chosen = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype if model.dtype != "auto" else None,
    }
    return {name: value for name, value in chosen.items() if value is not None}

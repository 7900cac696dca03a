"""The run of a recipe, once its command line is checked: evaluate, train, evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import ModelConfig, get_peft_config

from alignopsd_trl.common.files import write_json, write_text
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.common.options import as_mapping, path_as_given
from alignopsd_trl.config import AlignOPSDConfig
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.launch.job import Job
from alignopsd_trl.launch.machine import check_launch, launched
from alignopsd_trl.launch.memory import GIB
from alignopsd_trl.launch.plan import SLOW_SAMPLING
from alignopsd_trl.launch.results import Evaluations, run_results
from alignopsd_trl.launch.screens import closing, opening
from alignopsd_trl.methods import get_method
from alignopsd_trl.results.card import model_card
from alignopsd_trl.results.hub import PushFailed, push_run, push_trajectories
from alignopsd_trl.runs.folder import LOG_FILE, TRAIN, claim_together, claimed
from alignopsd_trl.runs.owned import owned
from alignopsd_trl.runs.readers import outlives_its_readers
from alignopsd_trl.runs.state import RESULTS_FILE
from alignopsd_trl.skills import foreign_bank


def run(
    job: Job, callbacks: Sequence[TrainerCallback] = (), changed: Mapping[str, Any] | None = None, machine: str = ""
) -> dict[str, Any]:
    """Evaluates, trains, evaluates again; leaves results, checkpoint, card and trajectories in the output folder.

    Args:
        changed: settings that differ from the preset.
        machine: line about the machine.

    Raises:
        PushFailed: if the finished run could not be pushed; everything is in its folder.
        RunFolderError: if the folder is in use, or holds a run that this one does not continue.
    """
    args = job.args
    disable_progress_bar()  # bars of files; a run shows its own lines
    with setup():
        check_launch(launched(), args)
        job.check()
        resume = args.resume_from_checkpoint
        folder = claim_together(args.output_dir, job.configuration(), resume, args.overwrite_output_dir)
    readable = f"nobody reads this run's output any more; it goes on, and its numbers are in {folder.path / LOG_FILE}"
    with claimed(folder), outlives_its_readers(readable):
        config = args.to_dict()  # as the user set it: the trainer adds to it
        if folder.writes:
            said = opening_facts(job) | ({"machine": machine} if machine else {})
            print(opening(said, changed or {}, folder), flush=True)
        push, args.push_to_hub = args.push_to_hub, False  # once, after the results, not transformers' two commits
        with setup():
            trainer = _trainer(job, callbacks)
            skilled = get_method(args.method).skills_in_evaluation
            evaluations = Evaluations(job.panel, folder, trainer, skilled, job.recipe.evaluate_first)
        trainer.run_folder = folder
        trainer.add_callback(evaluations)
        trainer.train()
        evaluations.play("after")
        trainer.save_model(args.output_dir)
        results = run_results(job, folder, trainer, evaluations, config, changed or {})
        if folder.writes:
            write_json(folder.path / RESULTS_FILE, results)
            name = args.hub_model_id or Path(args.output_dir).name
            place = args.hub_model_id or path_as_given(args.output_dir)
            with owned(TRAIN, folder.path / "README.md"):
                write_text(folder.path / "README.md", model_card(results, name, place=place))
            print(closing(results["before"], results["after"], folder), flush=True)
            _push(folder.path, name if push else None, job.recipe.trajectories_hub_repo, args)
    return results


def _push(folder: Path, model: str | None, trajectories: str | None, args: AlignOPSDConfig) -> None:
    """Pushes to both repositories, also if the first push fails."""
    failed = []
    for push, repository in ((push_run, model), (push_trajectories, trajectories)):
        try:
            if repository:
                print(push(folder, repository, args.hub_token, args.hub_private_repo), flush=True)
        except PushFailed as error:
            failed.append(str(error))
    if failed:
        raise PushFailed("\n".join(failed))


def _trainer(job: Job, callbacks: Sequence[TrainerCallback]) -> Any:
    from alignopsd_trl.trainer import AlignOPSDTrainer

    args, model = job.args, job.model
    args.model_init_kwargs = {**as_mapping(args.model_init_kwargs), **_model_options(model)}
    trainer = AlignOPSDTrainer(
        resolve_model(job.policy),
        args,
        environment_factory=job.suite.factory,
        train_dataset=job.tasks,
        eval_dataset=Dataset.from_list([dict(row) for row in job.panel]) if args.eval_strategy != "no" else None,
        skill_bank=job.bank,
        encoder=job.encoder,
        peft_config=get_peft_config(model),
        quantization_config=job.quantization,
        callbacks=[*callbacks],
    )
    strange = foreign_bank(trainer.skill_bank, job.suite)
    if strange and trainer.is_world_process_zero():
        print(f"WRONG {strange}", flush=True)
    return trainer


def opening_facts(job: Job) -> dict[str, str]:
    """Returns the lines of the first screen, by their labels."""
    return job.facts(launched()) | _of_the_gpu(job.args)


def _of_the_gpu(args: AlignOPSDConfig) -> dict[str, str]:
    """Returns the GPU's line of the first screen; empty without a GPU."""
    if not torch.cuda.is_available():
        return {}
    if args.use_cpu:
        return {"GPU": "left alone, as use_cpu=True asks: --use_cpu False takes it"}
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    said = {"GPU": f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[0] / GIB:.0f} GiB free, {precision}"}
    return said if args.use_vllm else said | {"sampling": SLOW_SAMPLING}


def _model_options(model: ModelConfig) -> dict[str, Any]:
    chosen = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype if model.dtype != "auto" else None,
    }
    return {name: value for name, value in chosen.items() if value is not None}

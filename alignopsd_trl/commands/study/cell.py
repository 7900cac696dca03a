"""Runs one cell in a process of its own: ``python -m alignopsd_trl.commands.study.cell FOLDER``.

FOLDER holds ``cell.json``. A training cell runs the recipe's entry and resumes from its last whole checkpoint;
an evaluation goes through `commands.launch.evaluate`. Its result is ``row.parquet``, written last and atomically.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from alignopsd_trl.commands.launch import evaluate
from alignopsd_trl.commands.launch.arguments import parse
from alignopsd_trl.commands.launch.job import Job
from alignopsd_trl.commands.launch.running import run
from alignopsd_trl.commands.study import rows
from alignopsd_trl.common.command import words
from alignopsd_trl.common.files import write_text
from alignopsd_trl.records import write_records
from alignopsd_trl.rollout.options import PlayOptions


def main(folder: Path) -> None:
    started = time.perf_counter()
    cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
    job = Job.of(*parse(cell["recipe"], ["--config", str(_yaml(folder, cell))]))
    columns = rows.provenance(job)  # before the run adds to its arguments
    columns |= _train(folder, job) if cell["trains"] else _evaluate(folder, cell, job)
    if os.environ.get("RANK", "0") != "0":
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    columns |= {
        "command": cell["command"],
        "yaml": (folder / "config.yaml").read_text(encoding="utf-8"),
        "wall_seconds": time.perf_counter() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_mib": usage.ru_maxrss / 1024,
        "threads": int(os.environ.get("OMP_NUM_THREADS", "0")),
    }
    write_records(folder / "row.parquet", [columns])


def _yaml(folder: Path, cell: dict[str, Any]) -> Path:
    """Writes the recipe's YAML file, with which a user can also repeat the cell by hand."""
    flat = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in cell["config"].items()}
    flat |= {"output_dir": str(folder / "run"), "evaluate_first": False, "disable_tqdm": True}
    path = folder / "config.yaml"
    if os.environ.get("RANK", "0") == "0" or not path.is_file():
        write_text(path, yaml.safe_dump(flat))
    return path


def _train(folder: Path, job: Job) -> dict[str, Any]:
    args = job.args
    args.resume_from_checkpoint = "True"  # resumes from any whole checkpoint
    results = run(job)
    trained = rows.training_columns(results["history"])
    played = args.generation_batch_size * math.ceil(trained["updates"] / args.steps_per_round)
    order = rows.task_order(Path(args.output_dir) / "trajectories")
    return rows.outcome_columns(results["after"]) | trained | {"trajectories": played, "task_order": order}


def _evaluate(folder: Path, cell: dict[str, Any], job: Job) -> dict[str, Any]:
    chosen, args = job.recipe, job.args
    flags = {
        **{name: getattr(chosen, name) for name in ("environment", "environment_options", "panel", "skill_bank")},
        **{name: getattr(args, name) for name in ("max_completion_length", *PlayOptions.names())},
        "skill_tokens": args.skill_budget,
        "encoder": chosen.encoder,
        "model": cell["model"] or job.policy,
        "limit": chosen.panel_limit,
        "temperature": args.eval_temperature,
        "batch_size": args.generation_batch_size,
        "dtype": job.model.dtype,
        "device": "cpu" if args.use_cpu else None,
        "seed": args.seed if cell["model"] is None else 0,
        "output": folder / "run",
    }
    argv = [part for name, value in flags.items() if value is not None for part in (f"--{name}", *words(value))]
    result = evaluate.main([*argv, *(["--skills"] if cell["skills"] else [])])
    return rows.outcome_columns(result.to_dict(outcomes=True))


if __name__ == "__main__":
    cells_folder = Path(sys.argv[1]).absolute()  # an environment may change the process's folder
    try:
        main(cells_folder)
    except Exception as error:  # to a file of its own, apart from a launcher's messages
        (cells_folder / "error.txt").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise

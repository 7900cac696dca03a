"""The entry of all recipes. It reads preset, YAML and flags, then evaluates, trains, evaluates and writes results.

python recipes/webshop_tiny.py --method grpo --rounds 20
accelerate launch recipes/webshop_7b.py --config my.yaml --plan

It imports nothing heavy before it has checked the command line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from alignopsd_trl.commands.launch import presets
from alignopsd_trl.common.command import TRACEBACK
from alignopsd_trl.common.cores import use_machine
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.reporting import reported

HELP = """\
{recipe}: evaluates a panel, trains, evaluates it again; results, records and the model go to one folder.

  alignopsd train {recipe} [--FLAG VALUE ...] [--config FILE.yaml]          one process
  accelerate launch --config_file $(alignopsd --files fsdp2) -m alignopsd_trl.commands.cli train {recipe} ...
  In the repository also: python recipes/{recipe}.py ...

Looking before running
  --plan                      checks everything a run would, and shows rows, memory and settings; loads no weights
  --help all                  every argument
  --traceback                 shows where an error comes from

What is trained
  --method NAME               align_opsd (default), grpo, gigpo, hgpo, graphgpo, gagpo, beacon, rlsd, sdar, opsd,
                              grpo_opsd, skill_grpo, skill_sd, step_opsd, agent_opsd, monte_carlo; or the module of
                              one of yours
  --preset paper|released     the paper's settings, or the published launcher's
  --model NAME                a folder, a Hub id, or tiny, tiny_trips, tiny_alfworld, tiny_pairs, tiny_searchqa,
                              tiny_hops (shipped)
  --use_peft                  train a LoRA adapter (--lora_r, --lora_alpha, ...)
  --learning_rate X           and every field of TRL's GRPOConfig

Tasks and rounds
  --environment NAME          webshop, alfworld, searchqa, each also with _tiny; or a module with suite()
  --environment_options JSON  handed to the environment, e.g. '{{"data_dir": "DATA"}}'
  --rounds N                  rollout rounds, whatever --num_iterations is
  --tasks_per_round N         task groups a round, over all processes
  --num_generations N         episodes of a group
  --updates_per_round N       optimiser steps a pass over a round
  --panel NAME, --panel_limit N, --evaluate_first False
  --skill_bank NAME|FILE      the teacher's privileged text;  --encoder lexical|FOLDER|ID ranks it

The run (docs/runs.md)
  --output_dir FOLDER         belongs to one run
  --resume_from_checkpoint True   goes on with whatever is missing
  --overwrite_output_dir True     removes the run that is there
  --save_steps N, --seed N, --max_failed_share X, --report_to wandb|trackio|tensorboard|none
"""
"""The page of ``--help``: the most common settings. ``--help all`` shows every argument."""


def main(
    name: str, argv: Sequence[str] | None = None, preset: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Runs a recipe; returns the content of its ``results.json`` (``None`` for a plan or a help page).

    A process that a command line started ends with a message of a few lines and status 2 for a run that can't
    start, 1 for one that had to stop; ``--traceback`` shows where the error comes from. With ``argv`` given, errors
    are raised.

    Args:
        name (`str`): name of a shipped recipe, of your own preset, or of a module with a mapping ``PRESET``.
        argv (`list[str]`, *optional*): command line; the process's own by default.
        preset (`dict`, *optional*): defaults of your own recipe, by argument; see ``docs/your_own_task.md``.
    """
    words = sys.argv[1:] if argv is None else argv
    # --model, the flag of the other commands, is TRL's --model_name_or_path
    given = [re.sub(r"^--model(?=$|=)", "--model_name_or_path", word) for word in words if word != TRACEBACK]
    with reported(name, quietly=argv is None):
        if asked := [place for place, word in enumerate(given) if word in ("-h", "--help")]:
            if given[asked[0] + 1 : asked[0] + 2] == ["all"]:
                from alignopsd_trl.commands.launch.arguments import everything

                print(everything())
            else:
                print(HELP.format(recipe=name))
            return None
        return start(name, given, preset)


def start(name: str, argv: Sequence[str], preset: Mapping[str, Any] | None) -> dict[str, Any] | None:
    with setup():
        if preset is None:
            presets.preset(name)  # before the slow imports
        from alignopsd_trl.commands.launch.arguments import parsed
        from alignopsd_trl.commands.launch.job import Job, plan

        job = Job.of(*parsed(name, [word for word in argv if word != "--all"], preset))
        if job.recipe.plan:
            text = plan(job, whole="--all" in argv)
            if int(os.environ.get("RANK", "0")) == 0:
                print(text)
            return None
        threads = use_machine(job.recipe.threads) if job.args.device.type == "cpu" else ""
    from alignopsd_trl.commands.launch.running import run

    return run(job, machine=threads)

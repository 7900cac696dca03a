"""The page of ``--help``: the most common settings. ``--help all`` shows every argument."""

from __future__ import annotations

from collections.abc import Sequence

HELP = """\
{recipe}: evaluates a panel, trains, evaluates it again; results, records and the model go to one folder.

  alignopsd train {recipe} [--FLAG VALUE ...] [--config FILE.yaml]          one process
  accelerate launch --config_file $(alignopsd --files fsdp2) -m alignopsd_trl.cli train {recipe} ...
  In the repository also: python recipes/{recipe}.py ...

Looking before running
  --plan                      checks everything a run would, and shows rows, memory and settings; loads no weights
  --help all                  every argument
  --traceback                 shows where an error comes from

What is trained
  --method NAME               align_opsd (default), grpo, gigpo, hgpo, graphgpo, gagpo, rlsd, sdar, opsd, grpo_opsd,
                              skill_grpo, skill_sd, step_opsd, agent_opsd, monte_carlo; or the module of one of yours
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


def wanted_help(argv: Sequence[str]) -> str | None:
    """Returns ``"page"``, ``"all"``, or `None` without a help flag."""
    for place, word in enumerate(argv):
        if word in ("-h", "--help"):
            return "all" if argv[place + 1 : place + 2] == ["all"] else "page"
    return None

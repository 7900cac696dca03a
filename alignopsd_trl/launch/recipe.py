"""The entry that all recipes share: preset, YAML and flags in; evaluation, training, evaluation, results out.

python recipes/webshop_tiny.py --method grpo --rounds 20
accelerate launch recipes/webshop_7b.py --config my.yaml --plan

Nothing heavy is imported before the command line has been looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from alignopsd_trl.launch import presets
from alignopsd_trl.launch.errors import reported, setup, without_debug
from alignopsd_trl.launch.flags import check_flags
from alignopsd_trl.launch.help import HELP, wanted_help
from alignopsd_trl.runs.cores import use_machine


def main(
    name: str, argv: Sequence[str] | None = None, preset: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Runs a recipe; returns the content of its ``results.json`` (``None`` for a plan or a help page).

    A process that was started by its command line ends with a message of a few lines and status 2 for what can't be
    run, 1 for a run that had to stop; ``--debug`` shows where. With ``argv`` given, errors are raised.

    Args:
        name (`str`): a shipped recipe's, one for a preset of your own, or that of a module with a mapping ``PRESET``.
        argv (`list[str]`, *optional*): command line; the process's own by default.
        preset (`dict`, *optional*): defaults of a recipe of your own, by argument; see ``docs/your_own_task.md``.
    """
    given, debug = without_debug(sys.argv[1:] if argv is None else argv)
    given = [_spelt_out(word) for word in given]
    with reported(name, quietly=argv is None and not debug):
        if topic := wanted_help(given):
            if topic == "page":
                print(HELP.format(recipe=name))
            else:
                from alignopsd_trl.launch.arguments import everything

                print(everything())
            return None
        with setup():
            check_flags(given)
            if preset is None:
                presets.preset(name)
        return start(name, given, preset)


def start(name: str, argv: Sequence[str], preset: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Plans or trains; returns what `main` does.

    Args:
        argv: the command line, which was checked for unknown flags.
    """
    with setup():
        from alignopsd_trl.launch.arguments import differences_from_preset, parse
        from alignopsd_trl.launch.job import Job

        given = parse(name, [word for word in argv if word != "--all"], preset)
        changed = differences_from_preset(name, preset, *given)
        job = Job.of(*given)
        if job.recipe.plan:
            from alignopsd_trl.launch.plan import plan

            text = plan(job, changed, whole="--all" in argv)
            if int(os.environ.get("RANK", "0")) == 0:
                print(text)
            return None
        threads = use_machine(job.recipe.threads) if job.args.device.type == "cpu" else ""
    from alignopsd_trl.launch.running import run

    return run(job, changed=changed, machine=threads)


def _spelt_out(word: str) -> str:
    """``--model``, as the other commands call it, is TRL's ``--model_name_or_path``."""
    flag, sign, value = word.partition("=")
    return f"--model_name_or_path{sign}{value}" if flag == "--model" else word

"""python -m alignopsd_trl.analysis NAME RUN [-o FOLDER]: runs one of the paper's analyses on a run's records"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignopsd_trl.runs.command import CommandParser

COMMANDS = {
    "temporal": "do corresponding decisions share timestamps?",
    "thinking": "similarity of thinking, and what a threshold leaves matched",
    "spans": "lengths of decision spans by task",
    "mechanism": "matches, spans over the divergence curve, gaps before and after",
    "dynamics": "reward, gaps, spans, weights over training; runs beside each other",
    "play": "rollouts with and without the skill, for temporal --privileged",
}
GONE = {
    "sensitivity": "is drawn by a study with sweeps: alignopsd study sensitivity_tiny",
    **dict.fromkeys(("sheet", "agreement"), "is of a checkout: python -m research.annotation"),
}
"""Commands of earlier releases -> their replacements."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs ``alignopsd analyse``."""
    argv = sys.argv[1:] if argv is None else argv
    parser = CommandParser(prog="alignopsd analyse", description="One of the paper's analyses, from records.")
    if argv and argv[0] in GONE:
        parser.error(f"{argv[0]} {GONE[argv[0]]}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, about in COMMANDS.items():
        _arguments(name, commands.add_parser(name, help=about, description=about))
    arguments = vars(parser.parse_args(argv))
    with parser.told():
        _run(arguments.pop("name"), arguments.pop("run"), arguments.pop("output"), arguments)


def _arguments(name: str, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    if name == "play":
        add("run", metavar="model", help="hub id, path or shipped policy")
    else:
        add("run", nargs="+" if name in ("spans", "dynamics") else None, help="output folder of a run")
    plays = name == "play"
    told = "gets student/ and privileged/" if plays else "folder for figure and data; RUN/analysis by default"
    add("-o", "--output", type=Path, required=plays, help=told)
    if name in ("temporal", "thinking", "spans"):
        add("--step", type=int, action="append", dest="steps", help="only this step; repeatable")
    if name in ("thinking", "mechanism"):
        add("--encoder", help="'lexical', an id or a path; the run's own by default")
    if name == "temporal":
        add("--privileged", help="rollouts of the same tasks with the skill; 'play' makes them")
    elif name == "thinking":
        add("--threshold", type=float, help="gamma_H; the run's own by default")
    elif name == "mechanism":
        add("--step", type=int)
        add("--task")
        add("--rollout")
    elif name == "play":
        add("--environment", required=True)
        add("--tasks", type=int, default=100)
        add("--siblings", type=int, default=4)
        add("--temperature", type=float, default=1.0)
        add("--seed", type=int, default=0)
        for size in ("max_prompt_length", "max_completion_length", "skill_tokens"):
            add(f"--{size}", type=int, help="by default as the policy was trained")
        add("--device", default="cpu")


def _run(name: str, run: Any, output: Path | None, options: dict[str, Any]) -> None:
    from alignopsd_trl import analysis

    if name == "play":
        _play(run, output, options)
        return
    finding = getattr(analysis, name)(run, **options)
    print(finding)
    print(*finding.save(output or Path(run[0] if isinstance(run, list) else run) / "analysis"), sep="\n")


def _play(model: str, folder: Any, options: dict[str, Any]) -> None:
    from alignopsd_trl.analysis import play_siblings
    from alignopsd_trl.environments.loading import load
    from alignopsd_trl.runs.files import check_folder
    from alignopsd_trl.runs.progress import Bar
    from alignopsd_trl.runs.sizes import choose_sizes

    check_folder(str(folder), "output")
    suite = load(options.pop("environment"))
    sizes, told = choose_sizes(model, {name: value for name, value in options.items() if value})
    options |= {name: sizes[name] for name in ("max_prompt_length", "max_completion_length", "skill_tokens")}
    print(told, file=sys.stderr, flush=True)
    with Bar(2 * options["tasks"] * options["siblings"], suite.name) as bar:
        print(*play_siblings(model, suite, folder, **options, progress=bar), sep="\n")


if __name__ == "__main__":
    main()

"""python -m alignopsd_trl.analysis NAME RUN [-o FOLDER]: one of the paper's analyses, from a run's records"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alignopsd_trl.runs.command import CommandParser

if TYPE_CHECKING:
    from alignopsd_trl.analysis.finding import Finding


def main(argv: Sequence[str] | None = None) -> None:
    """``alignopsd analyse``."""
    parser = CommandParser(prog="alignopsd analyse", description="One of the paper's analyses, from records.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    _temporal(_command(commands, "temporal", "do corresponding decisions share timestamps?"))
    _thinking(_command(commands, "thinking", "similarity of thinking, and what a threshold leaves matched"))
    _spans(_command(commands, "spans", "lengths of decision spans by task", several=True))
    _mechanism(_command(commands, "mechanism", "matches, spans over the divergence curve, gaps before and after"))
    _command(commands, "dynamics", "reward, gaps, spans, weights over training; runs beside each other", several=True)
    _command(
        commands, "sensitivity", "success against the options in which runs, or a study's rows, differ", several=True
    )
    _sheet(commands.add_parser("sheet", help="trajectories for annotators, as .csv (people) or .json (agents)"))
    _agreement(_command(commands, "agreement", "the method's boundaries against a sheet that came back"))
    _play(commands.add_parser("play", help="rollouts with and without the skill, for temporal --privileged"))
    arguments = parser.parse_args(argv)
    with parser.told():
        _run(arguments)


def _command(
    commands: argparse._SubParsersAction, name: str, told: str, several: bool = False
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=told, description=told)
    parser.add_argument("run", nargs="+" if several else None, help="output folder of a run")
    parser.add_argument("-o", "--output", type=Path, help="folder for figure and data; RUN/analysis by default")
    if name in ("temporal", "thinking", "spans"):
        parser.add_argument("--step", type=int, action="append", dest="steps", help="only this step; repeatable")
    return parser


def _temporal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--privileged", help="rollouts of the same tasks with the skill; 'play' makes them")


def _thinking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoder", help="'lexical', an id or a path; the run's own by default")
    parser.add_argument("--threshold", type=float, help="gamma_H; the run's own by default")


def _spans(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--annotations", type=Path, help="a sheet that came back, for its mean length")


def _mechanism(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", type=int)
    parser.add_argument("--task")
    parser.add_argument("--rollout")
    parser.add_argument("--encoder", help="the run's own by default")


def _sheet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="output folder of a run")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the sheet, .csv or .json")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")


def _agreement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sheet", type=Path, help="with the annotators' goals")


def _play(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="hub id, path or shipped policy")
    parser.add_argument("--environment", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="gets student/ and privileged/")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--siblings", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("max_prompt_length", "max_completion_length", "skill_tokens"):
        parser.add_argument(f"--{name}", type=int, help="by default as the policy was trained")
    parser.add_argument("--device", default="cpu")


def _run(arguments: argparse.Namespace) -> None:
    from alignopsd_trl import analysis

    options = {name: value for name, value in vars(arguments).items() if name not in ("name", "run", "output", "sheet")}
    if arguments.name == "sheet":
        print(analysis.export_sheet(arguments.run, arguments.output, **options))
    elif arguments.name == "play":
        _play_both(arguments.output, options)
    elif arguments.name == "agreement":
        _save(analysis.agreement(arguments.run, arguments.sheet), arguments)
    else:
        if options.get("annotations"):
            options["annotations"] = analysis.read_annotations(options["annotations"])
        _save(getattr(analysis, arguments.name)(arguments.run, **options), arguments)


def _play_both(folder: Path, options: dict) -> None:
    from alignopsd_trl.analysis import play_siblings
    from alignopsd_trl.environments.loading import load
    from alignopsd_trl.runs.files import check_folder
    from alignopsd_trl.runs.progress import Bar
    from alignopsd_trl.runs.sizes import choose_sizes

    check_folder(str(folder), "output")
    model, suite = options.pop("model"), load(options.pop("environment"))
    sizes, told = choose_sizes(model, {name: value for name, value in options.items() if value})
    options |= {name: sizes[name] for name in ("max_prompt_length", "max_completion_length", "skill_tokens")}
    print(told, file=sys.stderr, flush=True)
    with Bar(2 * options["tasks"] * options["siblings"], suite.name) as bar:
        folders = play_siblings(model, suite, folder, **options, progress=bar)
    print(*folders, sep="\n")


def _save(finding: Finding, arguments: argparse.Namespace) -> None:
    first = arguments.run[0] if isinstance(arguments.run, list) else arguments.run
    print(finding)
    folder = arguments.output or (Path(first) if Path(first).is_dir() else Path(first).parent) / "analysis"
    print(*finding.save(folder), sep="\n")


if __name__ == "__main__":
    main()

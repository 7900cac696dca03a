"""``alignopsd analyse NAME RUN [-o FOLDER]``: runs one of the paper's analyses on a run's records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from alignopsd_trl.commands import analysis
from alignopsd_trl.common.command import CommandParser
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.reporting import reported


def main(argv: Sequence[str] | None = None) -> None:
    parser = CommandParser(prog="alignopsd analyse", description="One of the paper's analyses, from records.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (_, about) in analysis.ANALYSES.items():
        _arguments(name, commands.add_parser(name, help=about, description=about))
    arguments = vars(parser.parse_args(argv))
    name, run, output = (arguments.pop(one) for one in ("name", "run", "output"))
    with reported(parser.prog, resumes=None), setup():
        finding = getattr(analysis, name)(run, **arguments)
        print(finding)
        print(*finding.save(output or Path(run[0] if isinstance(run, list) else run) / "analysis"), sep="\n")


def _arguments(name: str, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", nargs="+" if name in ("spans", "dynamics") else None, help="output folder of a run")
    add("-o", "--output", type=Path, help="folder for figure and data; RUN/analysis by default")
    if name in ("temporal", "thinking", "spans"):
        add("--step", type=int, action="append", dest="steps", help="only this step; repeatable")
    if name in ("thinking", "mechanism"):
        add("--encoder", help="'lexical', an id or a path; the run's own by default")
    if name == "thinking":
        add("--threshold", type=float, help="gamma_H; the run's own by default")
    elif name == "mechanism":
        add("--step", type=int)
        add("--task")
        add("--rollout")


if __name__ == "__main__":
    main()

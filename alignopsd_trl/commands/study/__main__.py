"""Runs a study, or renders the rows that it has so far.

python -m alignopsd_trl.commands.study STUDY.yaml            # unfinished cells run; then tables and figures
python -m alignopsd_trl.commands.study STUDY.yaml --plan     # the cells, and which are finished
python -m alignopsd_trl.commands.study STUDY.yaml --render   # tables and figures from the rows alone, at any time
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from alignopsd_trl.common.command import CommandParser
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.files import check_folder, full_disk_named
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.runs.owned import refuse

if TYPE_CHECKING:
    from alignopsd_trl.commands.study.spec import Cell, Study


def main(argv: Sequence[str] | None = None) -> int:
    """Runs or renders a study; returns the exit status, 1 if a cell broke."""
    parser = CommandParser(prog="alignopsd study", description=__doc__.split("\n")[0])
    parser.add_argument("study", type=Path, help="YAML file; see docs/studies.md")
    parser.add_argument("--plan", action="store_true", help="list the cells and run nothing")
    parser.add_argument("--render", action="store_true", help="only tables and figures, from the rows")
    parser.add_argument("--rows", type=Path, help="only render these rows, with tables and figures beside them")
    parser.add_argument("--processes", type=int, help="cells at a time; overrides the study's")
    arguments = parser.parse_args(argv)
    from alignopsd_trl.commands.study.render import RESULTS, render
    from alignopsd_trl.commands.study.spec import StudyError, missing_data, plan, read_study

    with setup():
        study = read_study(arguments.study)
        if arguments.processes:
            study = replace(study, processes=arguments.processes)
        cells = [] if arguments.render or arguments.rows else plan(study)
        for name, folder in {"output": study.output, "cells": study.cells}.items() if cells else ():
            check_folder(str(folder), name)
            refuse([study.output / RESULTS], "study")
        missing = missing_data(study) if cells else []
        if missing and not arguments.plan:
            raise StudyError("\n".join(missing))
    if arguments.plan:
        _print_plan(study, cells, missing)
        return 0
    from alignopsd_trl.commands.study.rows import ROWS, read_rows
    from alignopsd_trl.commands.study.run import run_study, save_rows

    broken = {}
    with full_disk_named(study.output, "the study's files"):
        if cells:
            save_rows(study, cells, {})
            broken = run_study(study, cells)
    if broken:
        print(f"{len(broken)} of {len(cells)} cells broke; the same command tries them again")
    path = arguments.rows or study.output / ROWS
    result = render(study.name, read_rows(path), path.parent, study.reference)
    print(result.read_text(encoding="utf-8"))
    print(f"rows: {path}\ntables: {result}\nfigures: {result.parent / 'figures'}")
    return int(bool(broken))


def _print_plan(study: Study, cells: Sequence[Cell], missing: Sequence[str]) -> None:
    finished = [cell.row_file.is_file() for cell in cells]
    for cell, ended in zip(cells, finished, strict=True):
        state = "finished" if ended else "trains" if cell.trains else "evaluates"
        print(f"{state:<10}{cell.name}  {cell.folder}")
    print(f"{len(cells)} cells, {sum(finished)} finished, {study.processes} at a time", *missing, sep="\n")


def command(argv: Sequence[str] | None = None) -> int:
    """Calls `main`; an error that the user can fix ends it with a few lines, a signal ends the cells too."""
    with reported("alignopsd study", resumes=""):
        return main(argv)


if __name__ == "__main__":
    sys.exit(command())

"""``alignopsd view RUN [-o view.html]``; ``alignopsd view RUN RUN`` compares runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from alignopsd_trl.common.command import CommandParser
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.reporting import reported
from alignopsd_trl.runs.state import broken_off


def view(argv: Sequence[str] | None = None) -> None:
    parser = CommandParser(
        prog="alignopsd view", description="One run as a page: where the credit went. Several runs: compared."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder; several are compared with the first")
    parser.add_argument("--step", type=int, action="append", dest="steps", help="only this rollout step; repeatable")
    parser.add_argument("--task", help="open at this task")
    out = "the file to write; RUN/view.html or compare.html by default"
    parser.add_argument("-o", "--output", type=Path, help=out)
    arguments = parser.parse_args(argv)
    runs, output = arguments.runs, arguments.output
    if len(runs) > 1 and (arguments.steps or arguments.task):
        parser.error("--step and --task are for one run; name one, or leave them out")
    with reported(parser.prog, resumes=None), setup():
        from alignopsd_trl.commands.viewer import compare_runs, view_run

        if len(runs) > 1:
            print(compare_runs(runs).save(output or Path("compare.html")))
            return
        if told := broken_off(runs[0]):
            print(told, file=sys.stderr)
        print(view_run(runs[0], arguments.steps, arguments.task).save(output or Path(runs[0]) / "view.html"))


if __name__ == "__main__":
    view()

"""python -m alignopsd_trl.viewer RUN [-o view.html | --serve]; python -m alignopsd_trl.viewer --compare RUN RUN"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alignopsd_trl.runs.broken_off import broken_off
from alignopsd_trl.runs.command import CommandParser

if TYPE_CHECKING:
    from alignopsd_trl.viewer.page import Page


def view(argv: Sequence[str] | None = None) -> None:
    """Runs ``alignopsd view``."""
    parser = CommandParser(prog="alignopsd view", description="One run as a page: where the credit went.")
    parser.add_argument("run", help="output folder of a run")
    parser.add_argument("--step", type=int, action="append", dest="steps", help="only this rollout step; repeatable")
    parser.add_argument("--task", help="open at this task")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", type=Path, help="the file to write; RUN/view.html by default")
    where.add_argument("--serve", action="store_true", help="serve on loopback, step by step, instead of writing")
    parser.add_argument("--port", type=int, default=0, help="of --serve; a free one by default")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.port < 65536:
        parser.error(f"--port {arguments.port} must lie in [0, 65535]")
    from alignopsd_trl.viewer import view_run
    from alignopsd_trl.viewer.run import read_run

    if told := broken_off(arguments.run):
        print(told, file=sys.stderr)
    with parser.told():
        page = view_run(arguments.run, arguments.steps, arguments.task)
        if arguments.serve:
            _serve(page, arguments.steps or read_run(arguments.run).steps, arguments.port)
        else:
            print(page.save(arguments.output or Path(arguments.run) / "view.html"))


def compare(argv: Sequence[str] | None = None) -> None:
    """Runs ``alignopsd compare``."""
    parser = CommandParser(prog="alignopsd compare", description="Runs against the first of them.")
    parser.add_argument("runs", nargs="+", help="output folders of runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("compare.html"), help="the file to write")
    arguments = parser.parse_args(argv)
    from alignopsd_trl.viewer import compare_runs

    with parser.told():
        print(compare_runs(arguments.runs).save(arguments.output))


def _serve(page: Page, steps: list[int], port: int) -> None:
    from alignopsd_trl.viewer.serve import make_server

    try:
        server = make_server(page, steps, port)
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror}; choose another, or leave it out for a free one") from error
    print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        compare(sys.argv[2:])
    else:
        view()

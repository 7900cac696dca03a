"""``alignopsd view RUN [-o view.html | --serve]``; ``alignopsd view RUN RUN`` compares runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alignopsd_trl.common.command import CommandParser
from alignopsd_trl.runs.state import broken_off

if TYPE_CHECKING:
    from alignopsd_trl.viewer.page import Page


def view(argv: Sequence[str] | None = None) -> None:
    """Writes or serves the page of a run, or writes the page that compares several."""
    parser = CommandParser(
        prog="alignopsd view", description="One run as a page: where the credit went. Several runs: compared."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output folder; several are compared with the first")
    parser.add_argument("--step", type=int, action="append", dest="steps", help="only this rollout step; repeatable")
    parser.add_argument("--task", help="open at this task")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-o", "--output", type=Path, help="the file to write; RUN/view.html or compare.html by default")
    where.add_argument("--serve", action="store_true", help="serve on loopback, step by step, instead of writing")
    parser.add_argument("--port", type=int, default=0, help="of --serve; a free one by default")
    arguments = parser.parse_args(argv)
    if not 0 <= arguments.port < 65536:
        parser.error(f"--port {arguments.port} must lie in [0, 65535]")
    if len(arguments.runs) > 1 and (arguments.steps or arguments.task or arguments.serve or arguments.port):
        parser.error("--step, --task, --serve and --port are for one run; name one, or leave them out")
    with parser.told():
        if len(arguments.runs) == 1:
            _view(arguments)
        else:
            from alignopsd_trl.viewer import compare_runs

            print(compare_runs(arguments.runs).save(arguments.output or Path("compare.html")))


def _view(arguments: argparse.Namespace) -> None:
    from alignopsd_trl.viewer import view_run

    [run] = arguments.runs
    if told := broken_off(run):
        print(told, file=sys.stderr)
    page = view_run(run, arguments.steps, arguments.task)
    if arguments.serve:
        _serve(page, arguments.port)
    else:
        print(page.save(arguments.output or Path(run) / "view.html"))


def _serve(page: Page, port: int) -> None:
    from alignopsd_trl.viewer.serve import make_server

    try:
        server = make_server(page, port)
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror}; choose another, or leave it out for a free one") from error
    print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    view()

"""The command ``alignopsd push RUN [REPOSITORY] [--trajectories REPOSITORY]``: pushes a finished run to the Hub."""

from __future__ import annotations

from collections.abc import Sequence

from alignopsd_trl.common.command import CommandParser
from alignopsd_trl.common.errors import setup
from alignopsd_trl.common.reporting import reported


def main(argv: Sequence[str] | None = None) -> None:
    parser = CommandParser(prog="alignopsd push", description="A finished run to the Hub, as one commit.")
    parser.add_argument("run", help="output folder of a finished run")
    parser.add_argument("repository", nargs="?", help="id of the model's repository")
    parser.add_argument("--trajectories", help="id of a data set's repository for the trajectories")
    parser.add_argument("--licence", help="licence id of the weights, for the card")
    parser.add_argument("--base_model", help="hub id of an adapter's base, where the run loaded it from a folder")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--token", help="of the Hub; the stored login by default")
    arguments = parser.parse_args(argv)
    if not (arguments.repository or arguments.trajectories):
        parser.exit(2, f"{parser.prog}: name a REPOSITORY for the model, or --trajectories REPOSITORY, or both\n")
    from alignopsd_trl.results.hub import push_run, push_trajectories

    options = {"token": arguments.token, "private": arguments.private or None}
    with reported(parser.prog, resumes=None), setup():
        if arguments.repository:
            card = {"licence": arguments.licence, "base_model": arguments.base_model}
            print(push_run(arguments.run, arguments.repository, **options, **card))
        if arguments.trajectories:
            print(push_trajectories(arguments.run, arguments.trajectories, **options))

"""Shows a run in one HTML page without network: siblings by turns, their credit and its reasons.

    view_run("outputs/webshop_tiny").show()            in a notebook
    view_run("outputs/webshop_tiny").save("view.html")
    compare_runs(["outputs/a", "outputs/b"]).save("compare.html")

``alignopsd view RUN`` and ``alignopsd view RUN RUN`` are the same from a shell.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alignopsd_trl.commands.viewer.page import HtmlPage


def view_run(run: str | os.PathLike, steps: Sequence[int] | None = None, task: str | None = None) -> HtmlPage:
    """Makes the page of one run.

    Args:
        run: output folder of a run; it holds `trajectories/`.
        steps: the rollout steps to show; all by default.
        task: the task that the page opens at.

    Raises:
        FileNotFoundError: if the folder holds no trajectories.
        ValueError: if the run has no such step or task; the message names those that it has.
    """
    from alignopsd_trl.commands.viewer.page import run_page
    from alignopsd_trl.commands.viewer.run import read_run

    return run_page(read_run(run), steps, task)


def compare_runs(runs: Sequence[str | os.PathLike]) -> HtmlPage:
    """Makes a page with curves and paired results of the runs of two or more output folders; differences are to the
    first. Raises `ValueError` for fewer."""
    from alignopsd_trl.commands.viewer.page import compare_page
    from alignopsd_trl.commands.viewer.run import compare, read_run

    return compare_page(compare([read_run(run) for run in runs]))

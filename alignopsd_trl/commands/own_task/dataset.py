"""A task of a dataset's questions: what `alignopsd new --dataset` asks the dataset before it writes the task."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from alignopsd_trl.commands.own_task.worlds import Written
from alignopsd_trl.environments.adapters.questions import MATH, needs_math, questions

TRIES = 2
LEARNS_FORM = {"config=START)": "config=START, skilled_share=1.0)"}
"""In a recipe: its player knows nothing without the solution, so that it shows the answer's form under it alone."""


def asked_dataset(source: str) -> Written:
    """Reads a dataset once and returns what its task says. Raises `ValueError` for rows that can't be mapped, and where
    answers need a package to be compared."""
    path = Path(source).expanduser()
    source = str(path.resolve()) if path.exists() else source
    mathematical = needs_math([row["answer"] for row in questions(source)["train"]])
    if mathematical and find_spec("math_verify") is None:
        raise ValueError(
            f"--dataset {source}: its answers are formulas, which the package {MATH} compares: pip install {MATH}"
        )
    return Written({"SOURCE": source, "REWARD": "math" if mathematical else "equal", "TRIES": TRIES}, LEARNS_FORM)
